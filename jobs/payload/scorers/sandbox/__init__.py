"""The sandbox for code that a model wrote: no network, no files but given ones, limits that end what exceeds them."""
