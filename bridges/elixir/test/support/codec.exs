# Reads lines of JSON from a file and writes each decoded and encoded again, or "error: why".
[source, sink] = System.argv()

lines =
  for line <- File.stream!(source) do
    case UffScheduler.JSON.decode(line) do
      {:ok, value} -> [UffScheduler.JSON.encode!(value), ?\n]
      {:error, why} -> ["error: ", why, ?\n]
    end
  end

File.write!(sink, lines)
