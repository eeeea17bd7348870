defmodule UffScheduler.Positions do
  @moduledoc """
  How far each named reader of events has come. It outlives the client and the readers, and with `file:` also the BEAM.

  A reader acknowledges a position when it has done its work with everything up to there; after a crash it is sent what
  came behind. So an event is worked through once, unless the crash falls between the work and its acknowledgement:
  events have numbers by which a reader that must be exact knows them again.
  """

  use GenServer

  def start_link(options), do: GenServer.start_link(__MODULE__, options, name: Keyword.fetch!(options, :name))

  @doc "Returns the position that a reader acknowledged last, nil if it never did."
  def get(server, reader), do: GenServer.call(server, {:get, reader})

  @doc "Notes that a reader is done with everything up to a position. Positions never go back."
  def ack(server, reader, position) when is_binary(reader) and is_integer(position) do
    GenServer.call(server, {:ack, reader, position})
  end

  @impl true
  def init(options) do
    file = options[:file]
    {:ok, %{file: file, known: read(file)}}
  end

  @impl true
  def handle_call({:get, reader}, _, state), do: {:reply, state.known[reader], state}

  def handle_call({:ack, reader, position}, _, state) do
    known = Map.update(state.known, reader, position, &max(&1, position))
    if known != state.known, do: write(state.file, known)
    {:reply, :ok, %{state | known: known}}
  end

  defp read(nil), do: %{}

  defp read(file) do
    with {:ok, text} <- File.read(file), {:ok, %{} = known} <- UffScheduler.JSON.decode(text) do
      for {reader, position} <- known, is_integer(position), into: %{}, do: {reader, position}
    else
      {:error, :enoent} ->
        %{}

      # Better no start than all events again, or none: a person decides.
      other ->
        raise "the positions in #{file} cannot be read: #{inspect(other)}. Put them right, or remove the file"
    end
  end

  # Written beside and renamed, so that a crash leaves the old file or the new one; synced, so that power failures do too.
  defp write(nil, _), do: :ok

  defp write(file, known) do
    fresh = file <> ".new"
    {:ok, device} = :file.open(fresh, [:write, :raw, :binary])
    :ok = :file.write(device, UffScheduler.JSON.encode!(known))
    :ok = :file.sync(device)
    :ok = :file.close(device)
    File.rename!(fresh, file)
  end
end
