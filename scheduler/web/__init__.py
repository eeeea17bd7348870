"""The status page: pages for people, a JSON API, metrics and health. It only reads."""
