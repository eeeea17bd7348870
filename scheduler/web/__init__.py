"""The status page: pages for people, a JSON API, metrics, health, and the forms of actions."""
