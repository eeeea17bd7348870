defmodule UffScheduler.MixProject do
  use Mix.Project

  def project do
    [
      app: :uff_scheduler,
      version: "0.1.0",
      elixir: "~> 1.14",
      elixirc_paths: if(Mix.env() == :test, do: ["lib", "test/support"], else: ["lib"]),
      description: "A client of uff-scheduler over its port, and a TrainingCoordinator on top of it.",
      # None on purpose: it runs with what Debian's Elixir 1.14 brings.
      deps: []
    ]
  end

  def application, do: [extra_applications: [:logger]]
end
