"""The linear programme: spans and markets, bids and prices, very many jobs in parts."""
