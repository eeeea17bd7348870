defmodule UffScheduler.TrainingCoordinator do
  @moduledoc """
  A drop-in for a `TrainingCoordinator` whose steps were placeholders: `weekly`, `monitor`, `sync`, `deploy`, `status`.

  The scheduler plans and launches; this process listens. It works through every event once (`on_event`), remembers the
  newest of them for `monitor/1`, and acknowledges what it did, so that a restart goes on where it was. The verbs are
  asked by the process that calls them: a deployment of an hour keeps nobody else waiting.

  Options: `client` (default `UffScheduler.Client`), `name` (default this module), `targets` (for `sync/1`), `on_event`
  (a function of one event; if it raises, this process is started anew and is sent the event again), `kinds`.
  """

  use GenServer

  @kept 100
  @long_ms 3_600_000
  @retry_ms 1_000

  def start_link(options) do
    GenServer.start_link(__MODULE__, options, name: Keyword.get(options, :name, __MODULE__))
  end

  @doc "Launches the week: queues the models of the settings that are not in the queue yet. Returns them and the plan."
  def weekly(server \\ __MODULE__) do
    with {:ok, %{"jobs" => added}} <- ask(server, "queue.add", %{"models" => true}, @long_ms),
         {:ok, %{"plan" => plan}} <- ask(server, "plan.show") do
      {:ok, %{added: Enum.map(added, & &1["name"]), plan: plan}}
    end
  end

  @doc """
  How the trainings go: `verdict` is one line of text, which begins with what keeps the scheduler from its work, such as
  that no daemon runs; `counts` are its numbers. Then the jobs that matter most, live runs, and what happened last.
  """
  def monitor(server \\ __MODULE__) do
    with {:ok, %{"problems" => problems}} <- ask(server, "status"),
         {:ok, training} <- ask(server, "training"),
         {:ok, %{"runs" => runs}} <- ask(server, "runs.list", %{"rows" => 50}) do
      heard = GenServer.call(server, :heard)
      live = Enum.reject(runs, &(&1["state"] == "ended"))

      {:ok,
       %{
         verdict: Enum.join(problems ++ [training["line"]], " "),
         counts: training["verdict"],
         jobs: training["jobs"],
         live: live,
         events: heard.events,
         position: heard.position
       }}
    end
  end

  @doc "Brings every target of the options to the promoted versions. Returns what each answered."
  def sync(options \\ []) do
    server = Keyword.get(options, :server, __MODULE__)
    %{targets: targets} = GenServer.call(server, :options)
    args = %{"dry_run" => Keyword.get(options, :dry_run, false)}
    {:ok, Map.new(targets, &{&1, ask(server, "models.sync", Map.put(args, "target", &1), @long_ms)})}
  end

  @doc "Brings a version (`ufm@3`), or the promoted one of a model (`ufm`), to a target."
  def deploy(version, target, options \\ []) do
    server = Keyword.get(options, :server, __MODULE__)

    args =
      for {name, value} <- Keyword.take(options, [:reason, :dry_run]),
          into: %{},
          do: {Atom.to_string(name), value}

    ask(server, "models.deploy", Map.merge(args, %{"version" => version, "target" => target}), @long_ms)
  end

  @doc "The whole at a glance: who leads, the pools, what needs a person."
  def status(server \\ __MODULE__), do: ask(server, "status")

  defp ask(server, verb, args \\ %{}, timeout \\ 30_000) do
    %{client: client} = GenServer.call(server, :options)
    UffScheduler.call(client, verb, args, timeout)
  end

  # -- the listener --------------------------------------------------------------------------------------------------

  @impl true
  def init(options) do
    state = %{
      client: Keyword.get(options, :client, UffScheduler.Client),
      reader: inspect(Keyword.get(options, :name, __MODULE__)),
      targets: Keyword.get(options, :targets, []),
      on_event: Keyword.get(options, :on_event, fn _ -> :ok end),
      kinds: options[:kinds],
      ref: nil,
      events: [],
      position: nil
    }

    {:ok, state, {:continue, :listen}}
  end

  @impl true
  def handle_continue(:listen, state), do: {:noreply, listen(state)}

  @impl true
  def handle_call(:options, _, state), do: {:reply, state, state}
  def handle_call(:heard, _, state), do: {:reply, Map.take(state, [:events, :position]), state}

  @impl true
  def handle_info({:uff_scheduler, ref, {:events, events, position}}, %{ref: ref} = state) do
    Enum.each(events, fn event ->
      state.on_event.(event)
      :ok = UffScheduler.ack(state.client, state.reader, event["id"])
    end)

    :ok = UffScheduler.ack(state.client, state.reader, position)
    {:noreply, %{state | events: Enum.take(Enum.reverse(events) ++ state.events, @kept), position: position}}
  end

  # The database could not be read at that moment.
  def handle_info({:uff_scheduler, ref, {:refused, _}}, %{ref: ref} = state) do
    Process.send_after(self(), :listen, @retry_ms)
    {:noreply, state}
  end

  def handle_info(:listen, state), do: {:noreply, listen(state)}
  def handle_info(_, state), do: {:noreply, state}

  # The first time from the beginning: what happened before this was written counts as well.
  defp listen(state) do
    position = UffScheduler.position(state.client, state.reader) || 0
    {:ok, ref} = UffScheduler.subscribe(state.client, after: position, kinds: state.kinds)
    %{state | ref: ref, position: position}
  end
end
