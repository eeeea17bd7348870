defmodule Elias.Training do
  @moduledoc "An example of a supervision tree: put it among the children of your application."

  use Supervisor

  def start_link(options), do: Supervisor.start_link(__MODULE__, options, name: __MODULE__)

  @impl true
  def init(options) do
    scheduler =
      {UffScheduler,
       config: Keyword.fetch!(options, :config),
       positions: Keyword.fetch!(options, :positions),
       children: [{UffScheduler.TrainingCoordinator, targets: ["griffith"], on_event: &__MODULE__.report/1}]}

    Supervisor.init([scheduler], strategy: :one_for_one)
  end

  @doc "What is done with an event: promotions are printed, the rest is counted elsewhere."
  def report(%{"kind" => "model." <> arrow, "subject" => version}), do: IO.puts("#{version}: #{arrow}")
  def report(_), do: :ok
end
