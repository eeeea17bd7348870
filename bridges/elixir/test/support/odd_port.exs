# Stands in for `schedctl port`: says hello, then whatever its first argument makes it say, and ends.
alias UffScheduler.{JSON, Random}
[seed | _] = System.argv()
Random.seed(String.to_integer(seed))
:io.setopts(:standard_io, encoding: :latin1)
frame = fn body -> IO.binwrite([<<IO.iodata_length(body)::32>>, body]) end

odd = fn ->
  case :rand.uniform(7) do
    1 ->
      frame.(:crypto.strong_rand_bytes(:rand.uniform(30)))

    2 ->
      frame.(JSON.encode!(Random.value()))

    3 ->
      frame.(Random.damaged(IO.iodata_to_binary(JSON.encode!(%{"tag" => 1, "ok" => Random.value()}))))

    4 ->
      frame.(JSON.encode!(%{"tag" => Random.value(), "error" => Random.value()}))

    5 ->
      frame.(
        JSON.encode!(%{
          "subscription" => :rand.uniform(3),
          "position" => :rand.uniform(9),
          "events" => Random.value()
        })
      )

    6 ->
      frame.(String.duplicate("[", 10_000))

    7 ->
      frame.("")
  end
end

hello = %{"hello" => %{"protocol" => 1, "version" => "odd"}}
if :rand.uniform(4) > 1, do: frame.(JSON.encode!(hello)), else: frame.(JSON.encode!(Random.value()))
for _ <- 1..40, do: odd.()
# The last word: a length that no machine has, half a frame, or nothing at all.
IO.binwrite(Enum.random([<<0xFFFFFFFF::32, "x">>, <<100::32, "half">>, ""]))
