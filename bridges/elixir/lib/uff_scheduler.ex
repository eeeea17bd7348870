defmodule UffScheduler do
  @moduledoc """
  uff-scheduler from Elixir: a supervisor of a client of `schedctl port`, and of what stands on it.

      children = [
        {UffScheduler, config: "/etc/uff/config.toml", positions: "/var/lib/me/positions.json",
                       children: [{UffScheduler.TrainingCoordinator, targets: ["griffith"]}]}
      ]

  Under `:rest_for_one` stand, in this order: `UffScheduler.Positions`, which knows how far readers of events have
  come; `UffScheduler.Client`, which owns the port; and `children` of yours. Whatever crashes, what stands after it is
  restarted and reads on from the position that it acknowledged. No training hangs on any of it: the daemon owns
  them.

  Options: `name` (of the client, default `UffScheduler.Client`); `command` (a list, default `["schedctl"]`); `config`
  (a settings file); `agent` (a name: the limits for agents apply); `env` (more environment of the port); `positions` (a file, so that the BEAM may crash as well);
  `telemetry` (see `UffScheduler.Telemetry`); `children`.
  """

  use Supervisor

  alias UffScheduler.Positions

  @type client :: GenServer.server()
  @type error :: :timeout | :port_down | :client_down | %{optional(binary) => term}

  @timeout_ms 30_000

  def start_link(options \\ []) do
    Supervisor.start_link(
      __MODULE__,
      options,
      Keyword.take(options, [:supervisor]) |> Enum.map(fn {_, n} -> {:name, n} end)
    )
  end

  @impl true
  def init(options) do
    client = options[:name] || UffScheduler.Client

    wanted =
      options |> Keyword.take([:command, :config, :agent, :env, :telemetry]) |> Keyword.put(:name, client)

    Supervisor.init(
      [
        {Positions, name: positions(client), file: options[:positions]},
        {UffScheduler.Client, wanted}
        | options[:children] || []
      ],
      strategy: :rest_for_one,
      max_restarts: 10,
      max_seconds: 60
    )
  end

  @doc """
  Asks a verb of docs/bridges.md. An error is the port's own (`%{"message" => ..., "exit_code" => ...}`), `:timeout`
  (the answer is dropped when it comes; a change may have been made), `:port_down` or `:client_down`. While the port is
  down a call waits for it within its time-out.
  """
  @spec call(client, String.t(), map, timeout) :: {:ok, term} | {:error, error}
  def call(client, verb, args \\ %{}, timeout \\ @timeout_ms) do
    ask(client, {:request, verb, args, timeout})
  end

  @doc "What the port said of itself when it came up."
  def hello(client), do: ask(client, :hello)

  @doc """
  Sends this process `{:uff_scheduler, ref, {:events, events, position}}` for what happens: oldest first, each event
  once, also when the port was away. `:after` is the position to read on from (without it: from now on), `:kinds` and
  `:subject` choose. Before a gap `{:uff_scheduler, ref, {:missed, up_to}}` comes: older events were removed.
  """
  def subscribe(client, options \\ []) do
    ask(client, {:subscribe, "events.subscribe", given(options, [:after, :kinds, :subject]), self()})
  end

  @doc "Sends this process `{:uff_scheduler, ref, {:log, log}}` for what a run prints, until it has ended."
  def follow_log(client, run, options \\ []) do
    ask(client, {:subscribe, "log.subscribe", Map.put(given(options, [:after]), "run", run), self()})
  end

  @doc "Ends a subscription. What was sent before may still be in the mailbox."
  def unsubscribe(client, ref), do: ask(client, {:unsubscribe, ref})

  @doc "The position that a named reader acknowledged last."
  def position(client, reader), do: Positions.get(positions(client), reader)

  @doc "Acknowledges that a named reader is done with everything up to a position."
  def ack(client, reader, position),
    do: Positions.ack(positions(client), reader, position)

  defp positions(client) when is_atom(client), do: Module.concat(client, "Positions")

  defp given(options, names) do
    for {name, value} <- Keyword.take(options, names),
        value != nil,
        into: %{},
        do: {Atom.to_string(name), value}
  end

  defp ask(client, question) do
    GenServer.call(client, question, :infinity)
  catch
    :exit, _ -> {:error, :client_down}
  end
end
