defmodule UffScheduler.ClientTest do
  use ExUnit.Case

  @wait 60_000
  @moduletag timeout: 240_000

  defp start(options \\ []) do
    name = :"client_#{System.unique_integer([:positive])}"
    test = self()
    report = fn event, measured, metadata -> send(test, {:reported, event, measured, metadata}) end

    defaults = [
      name: name,
      command: [System.get_env("UFF_TEST_PYTHON", "python3"), "-m", "scheduler"],
      config: System.get_env("UFF_TEST_CONFIG"),
      telemetry: report
    ]

    start_supervised!({UffScheduler, Keyword.merge(defaults, options)}, id: name)
    name
  end

  defp up(client) do
    assert_receive {:reported, [:uff_scheduler, :port, :up], _, _}, @wait
    client
  end

  defp port_pid(client) do
    {:os_pid, pid} = Port.info(:sys.get_state(client).port, :os_pid)
    pid
  end

  defp kill(pid), do: {_, 0} = System.cmd("kill", ["-9", "#{pid}"])

  defp ids(client, ref, enough, found \\ []) do
    if length(found) >= enough do
      found
    else
      assert_receive {:uff_scheduler, ^ref, {:events, events, _}}, @wait
      ids(client, ref, enough, found ++ Enum.map(events, & &1["id"]))
    end
  end

  defp all_ids(client, after_id \\ 0, found \\ []) do
    {:ok, %{"events" => events, "position" => position}} =
      UffScheduler.call(client, "events.list", %{"after" => after_id, "limit" => 500})

    found = found ++ Enum.map(events, & &1["id"])
    if length(events) < 500, do: found, else: all_ids(client, position, found)
  end

  # Two events each, and the job is unchanged.
  defp happen(client, times) do
    for _ <- 1..times do
      {:ok, _} = UffScheduler.call(client, "queue.hold", %{"job" => "m0003"})
      {:ok, _} = UffScheduler.call(client, "queue.release", %{"job" => "m0003"})
    end
  end

  @tag :world
  test "answers, errors and large frames" do
    client = up(start())
    assert {:ok, %{"jobs" => %{}, "revision" => _}} = UffScheduler.call(client, "status")

    assert {:error, %{"exit_code" => 5, "message" => message}} =
             UffScheduler.call(client, "queue.show", %{"job" => "nobody"})

    assert message =~ "nobody"
    large = String.duplicate("0123456789", 2_000_000)
    assert {:ok, ^large} = UffScheduler.call(client, "echo", %{"data" => large}, @wait)
    assert {:error, %{"kind" => "Unwritable"}} = UffScheduler.call(client, "echo", %{"data" => self()})

    assert_receive {:reported, [:uff_scheduler, :request, :stop], %{duration: _},
                    %{verb: "status", outcome: :ok}}
  end

  @tag :world
  test "a request that takes too long is given up, and its late answer disturbs nobody" do
    client = up(start())
    assert {:error, :timeout} = UffScheduler.call(client, "plan.preview", %{}, 1)
    assert {:ok, 1} = UffScheduler.call(client, "echo", %{"data" => 1})
    assert {:ok, _} = UffScheduler.call(client, "plan.preview", %{}, @wait)
  end

  @tag :world
  test "a killed port comes back, what was asked is refused, and no event is lost or doubled" do
    client = up(start())
    {:ok, ref} = UffScheduler.subscribe(client, after: 0)
    known = all_ids(client)
    seen = ids(client, ref, length(known))
    asked = Task.async(fn -> UffScheduler.call(client, "plan.preview", %{}, @wait) end)
    Process.sleep(50)
    kill(port_pid(client))
    assert {:error, :port_down} = Task.await(asked, @wait)
    assert_receive {:reported, [:uff_scheduler, :port, :down], _, %{reason: {:exit_status, 137}}}, @wait
    up(client)
    happen(client, 3)
    kill(port_pid(client))
    up(client)
    happen(client, 2)
    more = all_ids(client, List.last(seen))
    assert seen ++ ids(client, ref, length(more)) == all_ids(client)
    refute_receive {:uff_scheduler, ^ref, _}, 500
  end

  @tag :world
  test "a subscriber that dies is forgotten, and one that ends its subscription hears nothing" do
    client = up(start())
    {:ok, ref} = UffScheduler.subscribe(client)
    :ok = UffScheduler.unsubscribe(client, ref)
    Task.await(Task.async(fn -> {:ok, _} = UffScheduler.subscribe(client) end))
    happen(client, 1)
    refute_receive {:uff_scheduler, ^ref, _}, 600
    assert :sys.get_state(client).subscriptions == %{}
  end

  @tag :world
  test "a log is followed to its end" do
    client = up(start())
    {:ok, %{"runs" => runs}} = UffScheduler.call(client, "runs.list", %{"rows" => 20})
    ended = Enum.find(runs, &(&1["state"] == "ended"))
    {:ok, ref} = UffScheduler.follow_log(client, ended["key"])
    assert_receive {:uff_scheduler, ^ref, {_, _}}, @wait
    {:ok, refused} = UffScheduler.follow_log(client, "nobody-1")
    assert_receive {:uff_scheduler, ^refused, {:refused, %{"exit_code" => 5}}}, @wait
  end

  @tag :world
  test "the coordinator works through every event once, whoever is killed under its supervisor" do
    test = self()
    client = :client_of_coordinator
    file = Path.join(System.tmp_dir!(), "positions-#{System.unique_integer([:positive])}.json")
    on_exit(fn -> File.rm(file) end)

    coordinator =
      {UffScheduler.TrainingCoordinator,
       client: client, on_event: fn event -> send(test, {:event, event["id"]}) end}

    up(start(name: client, positions: file, children: [coordinator]))
    known = all_ids(client)
    assert received(length(known)) == known

    victims = [UffScheduler.TrainingCoordinator, client, Module.concat(client, Positions)]

    Enum.reduce(victims, List.last(known), fn victim, last ->
      # Killed between its work and the acknowledgement it would be sent the event again, as it should.
      reader = inspect(UffScheduler.TrainingCoordinator)
      wait(fn -> Process.whereis(victim) != nil and UffScheduler.position(client, reader) >= last end)
      pid = Process.whereis(victim)
      Process.exit(pid, :kill)

      wait(fn ->
        Process.whereis(victim) not in [nil, pid] and match?({:ok, _}, UffScheduler.hello(client))
      end)

      happen(client, 1)
      fresh = all_ids(client, last)
      assert received(length(fresh)) == fresh
      List.last(fresh)
    end)

    refute_receive {:event, _}, 500
  end

  @tag :world
  test "the users' verbs" do
    client = :client_of_verbs

    up(
      start(
        name: client,
        children: [{UffScheduler.TrainingCoordinator, client: client, targets: ["nowhere"]}]
      )
    )

    alias UffScheduler.TrainingCoordinator, as: Coordinator
    assert {:ok, %{"leader" => _}} = Coordinator.status()
    assert {:ok, %{verdict: line, counts: %{}, jobs: [_ | _], live: [_ | _]}} = Coordinator.monitor()
    assert line =~ ~r/ · \d+ running · .* done/
    refute line =~ "\n"
    assert {:ok, %{added: added, plan: %{"placements" => _}}} = Coordinator.weekly()
    assert is_list(added)
    assert {:ok, %{"nowhere" => {:error, %{"exit_code" => 5}}}} = Coordinator.sync()
    assert {:error, %{"exit_code" => 5}} = Coordinator.deploy("ufm@3", "nowhere", dry_run: true)
  end

  @tag :world
  test "a call in the first second waits for the port, and so does one after a crash" do
    client = start()

    calls =
      for number <- 1..5, do: Task.async(fn -> UffScheduler.call(client, "echo", %{"data" => number}) end)

    assert Enum.map(calls, &Task.await(&1, @wait)) == for(number <- 1..5, do: {:ok, number})
    assert {:error, %{"exit_code" => 5}} = UffScheduler.call(up(client), "queue.show", %{"job" => "nobody"})
    kill(port_pid(client))
    assert_receive {:reported, [:uff_scheduler, :port, :down], _, _}, @wait
    assert {:ok, 6} = UffScheduler.call(client, "echo", %{"data" => 6}, @wait)
    assert %{waiting: waiting, pending: pending} = :sys.get_state(client)
    assert {waiting, pending} == {%{}, %{}}
  end

  test "what cannot be started is tried again with growing pauses, and requests are refused when their time is over" do
    client = start(command: ["/nonexistent/schedctl"], config: nil)
    assert {:error, :port_down} = UffScheduler.call(client, "status", %{}, 50)
    assert :sys.get_state(client).waiting == %{}

    pauses =
      for _ <- 1..4,
          do:
            (
              assert_receive {:reported, [_, :port, :down], %{retry_ms: pause}, _}, @wait
              pause
            )

    assert List.last(pauses) > hd(pauses)
    assert Process.alive?(Process.whereis(client))
  end

  test "a port that no longer reads is down, and does not take the client with it" do
    hello = ~s({"hello":{"protocol":1,"version":"deaf"}})
    length = hello |> byte_size() |> Integer.to_string(8) |> String.pad_leading(3, "0")
    script = "exec 0<&-; printf '\\000\\000\\000\\#{length}#{hello}'; sleep 1"
    client = start(command: ["sh", "-c", script], config: nil)
    pid = Process.whereis(client)
    {:ok, _} = UffScheduler.subscribe(client)

    assert_receive {:reported, [:uff_scheduler, :port, :up], _, %{version: "deaf"}}, @wait
    assert_receive {:reported, [:uff_scheduler, :port, :down], _, %{reason: {:exit, :epipe}}}, @wait
    assert Process.whereis(client) == pid
  end

  test "odd frames of every kind never crash the client" do
    paths = Enum.flat_map(:code.get_path(), &["-pa", to_string(&1)])
    script = Path.expand("support/odd_port.exs", __DIR__)

    for seed <- 1..String.to_integer(System.get_env("UFF_TEST_SEEDS", "3")) do
      client =
        start(command: ["elixir" | paths] ++ [script, "#{seed}"], config: nil, env: [{"LANG", "C.UTF-8"}])

      pid = Process.whereis(client)
      {:ok, _} = UffScheduler.subscribe(client)
      assert_receive {:reported, [:uff_scheduler, :port, :down], _, _}, @wait
      assert Process.whereis(client) == pid
      stop_supervised!(client)
    end
  end

  defp received(0), do: []

  defp received(count) do
    assert_receive {:event, id}, @wait
    [id | received(count - 1)]
  end

  defp wait(look, left \\ 500) do
    cond do
      look.() -> :ok
      left == 0 -> flunk("waited in vain")
      true -> Process.sleep(30) && wait(look, left - 1)
    end
  end
end
