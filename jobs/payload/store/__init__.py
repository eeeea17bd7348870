"""The artifact store as sessions use it: checkpoints, code, trees and locks."""
