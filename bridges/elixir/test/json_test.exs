defmodule UffScheduler.JSONTest do
  use ExUnit.Case, async: true

  alias UffScheduler.{JSON, Random}

  defp text(value), do: IO.iodata_to_binary(JSON.encode!(value))

  test "what was written is read back unchanged" do
    for seed <- 1..500 do
      Random.seed(seed)
      value = Random.value()
      assert JSON.decode(text(value)) == {:ok, value}
    end
  end

  test "damaged text is read or refused, and never raises" do
    outcomes =
      for seed <- 1..2_000 do
        Random.seed(seed)
        {outcome, _} = JSON.decode(Random.damaged(text([Random.value(), "some text", 1.5])))
        outcome
      end

    assert Enum.uniq(outcomes) |> Enum.sort() == [:error, :ok]
  end

  test "reads what the grammar allows" do
    assert JSON.decode(~S( { "a" : [ 1 , -0.5e+3 , true, null ] , "a\u00e9\ud83d\ude00\/": {} } )) ==
             {:ok, %{"a" => [1, -500.0, true, nil], "aé😀/" => %{}}}

    assert JSON.decode("1e5") == {:ok, 1.0e5}
    assert JSON.decode(~S({"a":1,"a":2})) == {:ok, %{"a" => 2}}
    assert JSON.decode("123456789012345678901234567890") == {:ok, 123_456_789_012_345_678_901_234_567_890}
  end

  for text <- [
        "",
        " ",
        "nul",
        "01",
        "1.",
        ".5",
        "+1",
        "-",
        "NaN",
        "1e999",
        "[1,]",
        "[,1]",
        "{,}",
        ~S({"a":1,}),
        ~S({"a"}),
        ~S({1:2}),
        ~S("a),
        ~S("\x"),
        ~S("\u12"),
        ~S("\ud800"),
        ~S("\udc00"),
        ~S("\ud800\u0041"),
        "\"\n\"",
        "\"\xff\"",
        "[1] 2",
        "[" <> String.duplicate("[", 100_000),
        String.duplicate("9", 20_000)
      ] do
    test "refuses #{String.slice(inspect(text), 0, 30)} #{byte_size(text)}" do
      assert {:error, why} = JSON.decode(unquote(text))
      assert is_binary(why)
    end
  end

  test "writes no text that is none, and nothing that has no form" do
    for value <- ["\xff", {1, 2}, self(), %{{1} => 2}, %{self() => 1}, fn -> 1 end, ~D[2026-11-21]] do
      assert {:error, _} = JSON.encode(value)
    end

    assert text(%{job: "ufm", why: nil}) == ~S({"job":"ufm","why":null})
  end
end
