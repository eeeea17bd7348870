"""Reports and charts: computed from facts, rendered as text, HTML, Markdown, Slack blocks and SVG."""
