# Writes the number of every event into a file, once, and goes on there after whatever happened: the file itself says
# how far it came. A line that was cut by the end of the machine is not counted.
[python, config, file] = System.argv()

defmodule Recorder do
  use GenServer

  def start_link(file), do: GenServer.start_link(__MODULE__, file)

  @impl true
  def init(file) do
    {text, rest} = file |> read() |> whole()
    if rest != "", do: File.write!(file, text)
    last = text |> String.split() |> List.last("0") |> String.to_integer()
    {:ok, ref} = UffScheduler.subscribe(UffScheduler.Client, after: last)
    {:ok, %{file: file, ref: ref}}
  end

  @impl true
  def handle_info({:uff_scheduler, ref, {:events, events, _}}, %{ref: ref} = state) do
    File.write!(state.file, Enum.map(events, &"#{&1["id"]}\n"), [:append])
    {:noreply, state}
  end

  # The database is not there yet: started anew by the supervisor.
  def handle_info({:uff_scheduler, _, {:refused, why}}, state), do: {:stop, {:refused, why}, state}

  defp read(file), do: with({:ok, text} <- File.read(file), do: text, else: (_ -> ""))

  defp whole(text) do
    size = byte_size(text) - (text |> String.split("\n") |> List.last() |> byte_size())
    String.split_at(text, size)
  end
end

{:ok, _} =
  UffScheduler.start_link(command: [python, "-m", "scheduler"], config: config, children: [{Recorder, file}])

Process.sleep(:infinity)
