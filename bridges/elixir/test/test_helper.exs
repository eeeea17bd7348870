# Tests of the port need a world, which the Python suite makes (tests/integration/bridge/test_elixir.py).
exclude = if System.get_env("UFF_TEST_CONFIG"), do: [], else: [:world]
ExUnit.start(exclude: exclude, capture_log: true)
