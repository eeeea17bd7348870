"""Pure decisions: windows, ledger, admission, job and run states. Standard library only, no clock."""
