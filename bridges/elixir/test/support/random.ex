defmodule UffScheduler.Random do
  @moduledoc "Values of JSON, and damage to text, from a seed."

  @characters ["a", "é", "\u2028", "😀", "\"", "\\", "\n", "\0", "\u007F", "/", "{", "\t", "\uFFFF"]

  def seed(number), do: :rand.seed(:exsss, {number, number, number})

  def value(depth \\ 4) do
    case :rand.uniform(if depth == 0, do: 6, else: 8) do
      1 -> nil
      2 -> :rand.uniform() < 0.5
      3 -> (:rand.uniform(2_000_001) - 1_000_001) * Integer.pow(10, :rand.uniform(25) - 1)
      4 -> (:rand.uniform() - 0.5) * :math.pow(10, :rand.uniform(600) - 300)
      n when n in 5..6 -> text()
      7 -> for _ <- 1..:rand.uniform(4), do: value(depth - 1)
      8 -> for _ <- 1..:rand.uniform(4), into: %{}, do: {text(), value(depth - 1)}
    end
  end

  def text, do: Enum.map_join(1..:rand.uniform(6), fn _ -> Enum.random(@characters) end)

  @doc "Puts a byte in, takes one out, or changes one."
  def damaged(text) do
    at = :rand.uniform(byte_size(text)) - 1
    <<before::binary-size(at), byte, rest::binary>> = text

    case :rand.uniform(3) do
      1 -> before <> rest
      2 -> before <> <<:rand.uniform(256) - 1, byte>> <> rest
      3 -> before <> <<:rand.uniform(256) - 1>> <> rest
    end
  end
end
