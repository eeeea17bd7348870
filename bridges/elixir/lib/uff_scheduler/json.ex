defmodule UffScheduler.JSON do
  @moduledoc """
  JSON as the port speaks it (RFC 8259), for Elixir before 1.18, which has none.

  Objects are maps with binaries as keys, the last of equal keys counts; `null` is `nil`. Integers are exact, of any
  size. What no float can hold (`1e999`), half a surrogate pair and text that is no UTF-8 are errors, and so is more
  than #{512} levels of nesting. Nothing raises but `encode!/1`; no atom is made of what was read.
  """

  @depth 512
  @digits 10_000

  @type value :: nil | boolean | number | binary | [value] | %{optional(binary) => value}

  @doc "Returns the value that a text holds, and nothing beside it."
  @spec decode(binary) :: {:ok, value} | {:error, String.t()}
  def decode(text) when is_binary(text) do
    case value(blank(text), @depth) do
      {found, rest} ->
        if blank(rest) == "", do: {:ok, found}, else: {:error, "text behind the value"}
    end
  catch
    {:json, why} -> {:error, why}
  end

  @doc "Returns a value as text in iodata. Atoms other than nil, true and false are written as their names."
  @spec encode(term) :: {:ok, iodata} | {:error, String.t()}
  def encode(value) do
    {:ok, write(value)}
  catch
    {:json, why} -> {:error, why}
  end

  @doc "As `encode/1`, and raises ArgumentError for what JSON cannot hold."
  @spec encode!(term) :: iodata
  def encode!(value) do
    case encode(value) do
      {:ok, text} -> text
      {:error, why} -> raise ArgumentError, why
    end
  end

  # -- reading -------------------------------------------------------------------------------------------------------

  defp value(_, 0), do: fail("nested too deeply")
  defp value(<<?{, rest::binary>>, depth), do: object(blank(rest), depth - 1, [])
  defp value(<<?[, rest::binary>>, depth), do: list(blank(rest), depth - 1, [])
  defp value(<<?", rest::binary>>, _), do: string(rest, [])
  defp value(<<"true", rest::binary>>, _), do: {true, rest}
  defp value(<<"false", rest::binary>>, _), do: {false, rest}
  defp value(<<"null", rest::binary>>, _), do: {nil, rest}
  defp value(<<c, _::binary>> = text, _) when c == ?- or c in ?0..?9, do: number(text)
  defp value("", _), do: fail("the text ends too early")
  defp value(_, _), do: fail("no value begins so")

  defp object(<<?}, rest::binary>>, _, []), do: {%{}, rest}

  defp object(<<?", rest::binary>>, depth, pairs) do
    {key, rest} = string(rest, [])

    case blank(rest) do
      <<?:, rest::binary>> ->
        {found, rest} = value(blank(rest), depth)
        pairs = [{key, found} | pairs]

        case blank(rest) do
          <<?,, rest::binary>> -> object(filled(blank(rest)), depth, pairs)
          # The list is in the order last to first, and of equal keys the last one given to Map.new counts.
          <<?}, rest::binary>> -> {Map.new(Enum.reverse(pairs)), rest}
          _ -> fail("an object goes on with a comma or ends")
        end

      _ ->
        fail("a key is followed by a colon")
    end
  end

  defp object(_, _, _), do: fail("a key is a text")

  defp filled(<<?", _::binary>> = rest), do: rest
  defp filled(_), do: fail("a key is a text")

  defp list(<<?], rest::binary>>, _, []), do: {[], rest}

  defp list(text, depth, found) do
    {one, rest} = value(text, depth)

    case blank(rest) do
      <<?,, rest::binary>> -> list(blank(rest), depth, [one | found])
      <<?], rest::binary>> -> {Enum.reverse([one | found]), rest}
      _ -> fail("a list goes on with a comma or ends")
    end
  end

  # A run of plain characters is taken as it is; escapes stand between runs.
  defp string(text, parts) do
    size = plain(text, 0)
    <<run::binary-size(size), rest::binary>> = text

    case rest do
      <<?", rest::binary>> ->
        # Copied, so that a short text does not keep a frame of megabytes alive.
        found = IO.iodata_to_binary(Enum.reverse([run | parts]))
        if String.valid?(found), do: {:binary.copy(found), rest}, else: fail("a text is no UTF-8")

      <<?\\, rest::binary>> ->
        {character, rest} = escaped(rest)
        string(rest, [character, run | parts])

      "" ->
        fail("a text does not end")

      _ ->
        fail("a control character in a text")
    end
  end

  defp plain(<<c, rest::binary>>, size) when c >= 0x20 and c != ?" and c != ?\\, do: plain(rest, size + 1)
  defp plain(_, size), do: size

  for {letter, character} <- [
        {?", "\""},
        {?\\, "\\"},
        {?/, "/"},
        {?b, "\b"},
        {?f, "\f"},
        {?n, "\n"},
        {?r, "\r"},
        {?t, "\t"}
      ] do
    defp escaped(<<unquote(letter), rest::binary>>), do: {unquote(character), rest}
  end

  defp escaped(<<?u, code::binary-size(4), rest::binary>>) do
    case {hex(code), rest} do
      {high, <<?\\, ?u, code::binary-size(4), rest::binary>>} when high in 0xD800..0xDBFF ->
        low = hex(code)
        if low not in 0xDC00..0xDFFF, do: fail("half a surrogate pair")
        {<<0x10000 + (high - 0xD800) * 0x400 + (low - 0xDC00)::utf8>>, rest}

      {code, _} when code in 0xD800..0xDFFF ->
        fail("half a surrogate pair")

      {code, rest} ->
        {<<code::utf8>>, rest}
    end
  end

  defp escaped(_), do: fail("no such escape")

  defp hex(code) do
    with true <- code =~ ~r/\A[0-9a-fA-F]{4}\z/,
         do: String.to_integer(code, 16),
         else: (_ -> fail("no such escape"))
  end

  defp number(text) do
    # The longest beginning that is a number, as the grammar has it.
    [{0, size} | _] =
      Regex.run(~r/\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/, text, return: :index) ||
        fail("no number")

    <<found::binary-size(size), rest::binary>> = text
    {number_of(found), rest}
  end

  defp number_of(text) when byte_size(text) > @digits, do: fail("a number of more than #{@digits} digits")

  defp number_of(text) do
    if text =~ ~r/[.eE]/, do: float(text), else: String.to_integer(text)
  end

  # Erlang reads floats only with a point: 1e5 is 1.0e5.
  defp float(text) do
    text = if String.contains?(text, "."), do: text, else: String.replace(text, ~r/[eE]/, ".0e")
    :erlang.binary_to_float(text)
  rescue
    ArgumentError -> fail("a number that no float can hold")
  end

  defp blank(<<c, rest::binary>>) when c in [?\s, ?\n, ?\r, ?\t], do: blank(rest)
  defp blank(text), do: text

  # -- writing -------------------------------------------------------------------------------------------------------

  defp write(nil), do: "null"
  defp write(true), do: "true"
  defp write(false), do: "false"
  defp write(atom) when is_atom(atom), do: text(Atom.to_string(atom))
  defp write(number) when is_integer(number), do: Integer.to_string(number)
  defp write(number) when is_float(number), do: :erlang.float_to_binary(number, [:short])
  defp write(binary) when is_binary(binary), do: text(binary)
  defp write([]), do: "[]"
  defp write(list) when is_list(list), do: [?[, Enum.intersperse(Enum.map(list, &write/1), ?,), ?]]
  defp write(%{__struct__: kind}), do: fail("#{inspect(kind)} has no form in JSON")

  defp write(map) when is_map(map) do
    pairs = Enum.map(map, fn {key, value} -> [key_of(key), ?:, write(value)] end)
    [?{, Enum.intersperse(pairs, ?,), ?}]
  end

  defp write(other), do: fail("#{inspect(other, limit: 5)} has no form in JSON")

  defp key_of(key) when is_binary(key), do: text(key)
  defp key_of(key) when is_atom(key), do: text(Atom.to_string(key))
  defp key_of(key), do: fail("#{inspect(key, limit: 5)} is no key of JSON")

  defp text(binary) do
    if not String.valid?(binary), do: fail("a text is no UTF-8")
    [?", escape(binary, []), ?"]
  end

  defp escape(text, parts) do
    size = plain(text, 0)

    case text do
      <<run::binary-size(size)>> -> Enum.reverse([run | parts])
      <<run::binary-size(size), c, rest::binary>> -> escape(rest, [escape_of(c), run | parts])
    end
  end

  defp escape_of(?"), do: "\\\""
  defp escape_of(?\\), do: "\\\\"
  defp escape_of(?\n), do: "\\n"
  defp escape_of(c), do: ["\\u00", String.pad_leading(Integer.to_string(c, 16), 2, "0")]

  defp fail(why), do: throw({:json, why})
end
