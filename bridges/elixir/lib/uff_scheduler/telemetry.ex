defmodule UffScheduler.Telemetry do
  @moduledoc """
  What happens, reported to a function of yours with the arguments of `:telemetry.execute/3`: give `&:telemetry.execute/3`
  itself where you have that library.

  | event | measurements | metadata |
  | --- | --- | --- |
  | `[:uff_scheduler, :port, :up]` | `%{attempt}` | `%{version, protocol}` |
  | `[:uff_scheduler, :port, :down]` | `%{retry_ms}` | `%{reason}` |
  | `[:uff_scheduler, :request, :stop]` | `%{duration}` in native units | `%{verb, outcome}`: `:ok`, `:error`, `:timeout`, `:port_down` |
  | `[:uff_scheduler, :events, :received]` | `%{count}` | `%{subscription, position}` |
  | `[:uff_scheduler, :frame, :unreadable]` | `%{bytes}` | `%{why}` |
  """

  require Logger

  @type handler :: nil | (list(atom), map, map -> any)

  @doc "Calls the handler. One that raises is logged and disturbs nobody."
  @spec execute(handler, list(atom), map, map) :: :ok
  def execute(nil, _, _, _), do: :ok

  def execute(handler, event, measurements, metadata) do
    handler.(event, measurements, metadata)
    :ok
  rescue
    error -> Logger.error("uff_scheduler: the telemetry handler failed: #{Exception.message(error)}")
  catch
    kind, why ->
      Logger.error("uff_scheduler: the telemetry handler failed: #{inspect({kind, why}, limit: 20)}")
  end
end
