"""When and what runs where: decisions, memory, duties, and all that people see of them."""
