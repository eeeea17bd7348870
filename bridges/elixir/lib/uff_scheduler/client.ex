defmodule UffScheduler.Client do
  @moduledoc """
  One conversation with `schedctl port`: requests with time-outs, and subscriptions that go on after the port, the
  daemon or the database were away.

  The port is opened again with growing pauses for as long as this process lives. Meanwhile requests wait for it, each
  as long as its time-out, and are then refused with `:port_down`: they were never asked. A request whose port went down
  after it was asked is refused with `:port_down` at once. Nothing is asked twice, because a change whose answer was lost
  may have been made.
  """

  use GenServer

  alias UffScheduler.{JSON, Telemetry}

  require Logger

  @protocol 1
  @frame_max 64 * 1024 * 1024
  @hello_ms 60_000
  # So long a port has to stay up before the pauses are short again.
  @stable_ms 10_000
  @pause_ms 200
  @pause_max_ms 30_000

  @doc "See `UffScheduler` for the options."
  def start_link(options), do: GenServer.start_link(__MODULE__, options, name: Keyword.fetch!(options, :name))

  @impl true
  def init(options) do
    # A port whose program no longer reads ends with a signal (:epipe), which would take this process with it.
    Process.flag(:trap_exit, true)

    state = %{
      command: command(options),
      env: for({name, value} <- options[:env] || [], do: {to_charlist(name), to_charlist(value)}),
      telemetry: options[:telemetry],
      port: nil,
      up: nil,
      attempt: 0,
      parts: [],
      size: 0,
      next: 1,
      pending: %{},
      waiting: %{},
      subscriptions: %{}
    }

    {:ok, state, {:continue, :open}}
  end

  @impl true
  def handle_continue(:open, state), do: {:noreply, open(state)}

  @impl true
  def handle_call(:hello, _, state),
    do: {:reply, if(state.up, do: {:ok, state.up}, else: {:error, :port_down}), state}

  def handle_call({:request, verb, args, timeout}, from, state) do
    {:noreply, request(state, verb, args, {:reply, from}, timeout)}
  end

  def handle_call({:subscribe, verb, args, pid}, _, state) do
    ref = Process.monitor(pid)
    one = %{verb: verb, args: args, pid: pid, position: args["after"], number: nil, missed: 0}
    state = put_in(state.subscriptions[ref], one)
    {:reply, {:ok, ref}, if(state.up, do: resubscribe(state, ref), else: state)}
  end

  def handle_call({:unsubscribe, ref}, _, state), do: {:reply, :ok, forget(state, ref)}

  @impl true
  def handle_info({port, {:data, data}}, %{port: port} = state) do
    {:noreply, take(%{state | parts: [data | state.parts], size: state.size + byte_size(data)})}
  end

  def handle_info({port, {:exit_status, code}}, %{port: port} = state) do
    {:noreply, down(state, {:exit_status, code})}
  end

  def handle_info({:EXIT, port, reason}, %{port: port} = state) when port != nil do
    {:noreply, down(state, {:exit, reason})}
  end

  def handle_info({:open, attempt}, %{port: nil, attempt: attempt} = state), do: {:noreply, open(state)}

  def handle_info({:no_hello, port}, %{port: port, up: nil} = state) when port != nil do
    {:noreply, down(state, :no_hello)}
  end

  def handle_info({:stable, port}, %{port: port} = state), do: {:noreply, %{state | attempt: 1}}

  def handle_info({:timeout, tag}, state) do
    case Map.pop(state.pending, tag) do
      {nil, _} -> {:noreply, state}
      {asked, pending} -> {:noreply, answer(%{state | pending: pending}, asked, {:error, :timeout})}
    end
  end

  def handle_info({:no_port, tag}, state) do
    case Map.pop(state.waiting, tag) do
      {nil, _} -> {:noreply, state}
      {one, waiting} -> {:noreply, answer(%{state | waiting: waiting}, one, {:error, :port_down})}
    end
  end

  def handle_info({:DOWN, ref, :process, _, _}, state), do: {:noreply, forget(state, ref)}
  # Of a port or a time-out that is over.
  def handle_info(_, state), do: {:noreply, state}

  # The closed port sees the end of its input, and ends.
  @impl true
  def terminate(_, _), do: :ok

  # -- the port ------------------------------------------------------------------------------------------------------

  defp command(options) do
    [program | words] = options[:command] || ["schedctl"]
    config = if options[:config], do: ["--config", options[:config]], else: []
    agent = if options[:agent], do: ["--agent", options[:agent]], else: []
    {program, words ++ config ++ ["port" | agent]}
  end

  defp open(state) do
    {program, words} = state.command
    state = %{state | attempt: state.attempt + 1, parts: [], size: 0}

    case System.find_executable(program) do
      nil ->
        down(state, {:no_program, program})

      path ->
        # Frames are cut here and not by the VM, which would believe any length that a frame states.
        port =
          Port.open({:spawn_executable, path}, [
            :binary,
            :exit_status,
            :use_stdio,
            args: words,
            env: state.env
          ])

        Process.send_after(self(), {:no_hello, port}, @hello_ms)
        %{state | port: port}
    end
  rescue
    error in ErlangError -> down(state, {:not_started, error.original})
  end

  defp down(state, reason) do
    if state.port, do: close(state.port)
    pause = pause(state.attempt)
    Process.send_after(self(), {:open, state.attempt}, pause)
    Telemetry.execute(state.telemetry, [:uff_scheduler, :port, :down], %{retry_ms: pause}, %{reason: reason})
    Logger.warning("uff_scheduler: the port is down (#{inspect(reason)}), next try in #{pause} ms")

    {asked, state} =
      Map.get_and_update(%{state | port: nil, up: nil, parts: [], size: 0}, :pending, &{&1, %{}})

    Enum.reduce(asked, unnumbered(state), fn {_, one}, state -> answer(state, one, {:error, :port_down}) end)
  end

  defp close(port) do
    Port.close(port)
  rescue
    ArgumentError -> true
  end

  # Doubled each time, and not the same for all clients of a machine that comes back.
  defp pause(attempt) do
    longest = min(@pause_max_ms, @pause_ms * Integer.pow(2, min(attempt - 1, 10)))
    div(longest, 2) + :rand.uniform(div(longest, 2))
  end

  # -- frames --------------------------------------------------------------------------------------------------------

  defp take(%{size: size} = state) when size < 4, do: state

  defp take(state) do
    # Joined only when a frame is whole: a large one comes in thousands of pieces.
    with false <- waiting_for_more?(state) do
      case state.parts |> Enum.reverse() |> IO.iodata_to_binary() do
        <<length::32, _::binary>> when length > @frame_max ->
          unreadable(state, length, "a frame of #{length} bytes was announced")
          down(state, :frame_too_long)

        <<length::32, body::binary-size(length), rest::binary>> ->
          %{state | parts: [rest], size: byte_size(rest)} |> Map.delete(:need) |> frame(body) |> more()

        <<length::32, _::binary>> = all ->
          Map.merge(state, %{parts: [all], need: length + 4})
      end
    else
      true -> state
    end
  end

  defp waiting_for_more?(%{need: need, size: size}), do: size < need
  defp waiting_for_more?(_), do: false

  defp more(%{port: nil} = state), do: state
  defp more(state), do: take(state)

  defp frame(state, body) do
    case JSON.decode(body) do
      {:ok, %{} = found} ->
        heard(state, found)

      {:ok, _} ->
        unreadable(state, byte_size(body), "no object")

      {:error, why} ->
        unreadable(state, byte_size(body), why)
    end
  end

  defp unreadable(state, bytes, why) do
    Logger.error("uff_scheduler: a frame of #{bytes} bytes cannot be read: #{why}")
    Telemetry.execute(state.telemetry, [:uff_scheduler, :frame, :unreadable], %{bytes: bytes}, %{why: why})
    state
  end

  defp heard(state, %{"hello" => %{"protocol" => @protocol} = hello}) do
    metadata = %{version: hello["version"], protocol: @protocol}
    Telemetry.execute(state.telemetry, [:uff_scheduler, :port, :up], %{attempt: state.attempt}, metadata)
    Process.send_after(self(), {:stable, state.port}, @stable_ms)
    Enum.reduce(Map.keys(state.subscriptions), %{state | up: hello}, &resubscribe(&2, &1)) |> ask_waiting()
  end

  defp heard(state, %{"hello" => _}), do: down(%{state | attempt: 20}, :other_protocol)

  defp heard(state, %{"tag" => tag} = frame) when is_integer(tag) do
    case Map.pop(state.pending, tag) do
      {nil, _} -> state
      {asked, pending} -> answer(%{state | pending: pending}, asked, result(frame))
    end
  end

  defp heard(state, %{"subscription" => number, "position" => position} = frame)
       when is_integer(number) and is_integer(position) do
    case Enum.find(state.subscriptions, fn {_, one} -> one.number == number end) do
      nil -> state
      {ref, one} -> deliver(state, ref, one, frame)
    end
  end

  defp heard(state, %{"trouble" => trouble}) do
    Logger.warning("uff_scheduler: events wait: #{inspect(trouble, limit: 10)}")
    state
  end

  defp heard(state, frame),
    do: unreadable(state, 0, "a frame of no known kind: #{inspect(Map.keys(frame), limit: 5)}")

  defp result(%{"ok" => found}), do: {:ok, found}
  defp result(%{"error" => %{} = error}), do: {:error, error}
  defp result(_), do: {:error, %{"kind" => "Unreadable", "message" => "an answer without ok and error"}}

  # -- requests ------------------------------------------------------------------------------------------------------

  defp request(%{up: nil} = state, verb, args, {:reply, _} = asker, timeout) do
    wait(state, verb, args, asker, timeout)
  end

  defp request(%{up: nil} = state, verb, _, asker, _) do
    answer(
      state,
      %{asker: asker, verb: verb, began: System.monotonic_time(), timer: nil},
      {:error, :port_down}
    )
  end

  defp request(state, verb, args, asker, timeout) do
    tag = state.next
    asked = %{asker: asker, verb: verb, began: System.monotonic_time(), timer: nil}

    with {:ok, text} <- JSON.encode(%{"tag" => tag, "verb" => verb, "args" => args}),
         size when size <= @frame_max <- IO.iodata_length(text) do
      Port.command(state.port, [<<size::32>>, text])
      timer = if timeout == :infinity, do: nil, else: Process.send_after(self(), {:timeout, tag}, timeout)
      %{state | next: tag + 1, pending: Map.put(state.pending, tag, %{asked | timer: timer})}
    else
      {:error, why} ->
        answer(state, asked, {:error, %{"kind" => "Unwritable", "message" => why}})

      size ->
        answer(state, asked, {:error, %{"kind" => "TooLong", "message" => "#{size} bytes fit no frame"}})
    end
  rescue
    # The port has gone, and its exit status has not come yet.
    ArgumentError -> request(%{state | up: nil}, verb, args, asker, timeout) |> Map.put(:up, state.up)
  end

  defp wait(state, verb, args, asker, timeout) do
    tag = state.next
    timer = if timeout == :infinity, do: nil, else: Process.send_after(self(), {:no_port, tag}, timeout)
    one = %{asker: asker, verb: verb, args: args, began: System.monotonic_time(), timer: timer}
    %{state | next: tag + 1, waiting: Map.put(state.waiting, tag, one)}
  end

  # In the order in which they came, each with what is left of its time.
  defp ask_waiting(state) do
    Enum.reduce(Enum.sort(state.waiting), %{state | waiting: %{}}, fn {_, one}, state ->
      case one.timer && Process.cancel_timer(one.timer) do
        nil -> request(state, one.verb, one.args, one.asker, :infinity)
        false -> answer(state, %{one | timer: nil}, {:error, :port_down})
        left -> request(state, one.verb, one.args, one.asker, left)
      end
    end)
  end

  defp answer(state, asked, result) do
    if asked.timer, do: Process.cancel_timer(asked.timer)

    outcome =
      case result do
        {:error, word} when is_atom(word) -> word
        {word, _} -> word
      end

    measured = %{duration: System.monotonic_time() - asked.began}

    Telemetry.execute(state.telemetry, [:uff_scheduler, :request, :stop], measured, %{
      verb: asked.verb,
      outcome: outcome
    })

    case asked.asker do
      {:reply, from} ->
        GenServer.reply(from, result)
        state

      {:subscribe, ref} ->
        subscribed(state, ref, result)

      :nobody ->
        state
    end
  end

  # -- subscriptions -------------------------------------------------------------------------------------------------

  defp resubscribe(state, ref) do
    one = state.subscriptions[ref]
    args = if one.position, do: Map.put(one.args, "after", one.position), else: one.args
    request(state, one.verb, args, {:subscribe, ref}, :infinity)
  end

  defp subscribed(state, ref, {:ok, %{"subscription" => number, "position" => position} = reply})
       when is_integer(number) and is_integer(position) do
    case state.subscriptions[ref] do
      nil ->
        # Its reader went away meanwhile.
        request(state, "unsubscribe", %{"subscription" => number}, :nobody, :infinity)

      one ->
        missed = if is_integer(reply["missed_up_to"]), do: reply["missed_up_to"], else: 0
        if missed > one.missed, do: send(one.pid, {:uff_scheduler, ref, {:missed, missed}})

        put_in(state.subscriptions[ref], %{
          one
          | number: number,
            position: position,
            missed: max(missed, one.missed)
        })
    end
  end

  defp subscribed(state, ref, {:ok, _}) do
    subscribed(state, ref, {:error, %{"kind" => "Unreadable", "message" => "an answer without a position"}})
  end

  # The port comes back, and with it the subscription.
  defp subscribed(state, _, {:error, :port_down}), do: state

  defp subscribed(state, ref, {:error, why}) do
    # The database may be away for a moment; what can never be followed is reported to the reader, who decides.
    if one = state.subscriptions[ref], do: send(one.pid, {:uff_scheduler, ref, {:refused, why}})
    forget(state, ref)
  end

  defp deliver(state, ref, one, %{"events" => events, "position" => position}) when is_list(events) do
    fresh =
      Enum.filter(events, fn event ->
        is_map(event) and is_integer(event["id"]) and event["id"] > one.position
      end)

    if fresh != [], do: send(one.pid, {:uff_scheduler, ref, {:events, fresh, position}})
    metadata = %{subscription: ref, position: position}

    Telemetry.execute(
      state.telemetry,
      [:uff_scheduler, :events, :received],
      %{count: length(fresh)},
      metadata
    )

    put_in(state.subscriptions[ref], %{one | position: max(position, one.position)})
  end

  defp deliver(state, ref, one, %{"log" => %{} = log, "position" => position}) do
    send(one.pid, {:uff_scheduler, ref, {:log, log}})
    state = put_in(state.subscriptions[ref], %{one | position: max(position, one.position)})
    if log["ended"], do: forget(put_in(state.subscriptions[ref].number, nil), ref), else: state
  end

  defp deliver(state, _, _, frame),
    do: unreadable(state, 0, "a subscription's frame without events and log: #{inspect(Map.keys(frame))}")

  defp forget(state, ref) do
    Process.demonitor(ref, [:flush])

    case pop_in(state.subscriptions[ref]) do
      {%{number: number}, state} when number != nil and state.up != nil ->
        request(state, "unsubscribe", %{"subscription" => number}, :nobody, :infinity)

      {_, state} ->
        state
    end
  end

  defp unnumbered(state) do
    %{state | subscriptions: Map.new(state.subscriptions, fn {ref, one} -> {ref, %{one | number: nil}} end)}
  end
end
