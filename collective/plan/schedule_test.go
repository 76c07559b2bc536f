package plan_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
)

var (
	seedFlag = flag.Uint64("seed", 1, "seed of the random interleavings and programs")
	programs = flag.Int("programs", 300, "how many random programs to simulate")
)

// schedules are all pairs of an operation and an algorithm that has it.
var schedules = []struct {
	kind plan.Kind
	alg  plan.Algorithm
}{
	{plan.AllReduce, plan.Ring},
	{plan.AllReduce, plan.Tree},
	{plan.AllReduce, plan.OneShot},
	{plan.AllGather, plan.Ring},
	{plan.AllGather, plan.OneShot},
	{plan.ReduceScatter, plan.Ring},
	{plan.ReduceScatter, plan.OneShot},
	{plan.Broadcast, plan.Ring},
	{plan.Broadcast, plan.OneShot},
	{plan.Reduce, plan.Ring},
	{plan.Reduce, plan.OneShot},
	{plan.Barrier, plan.Ring},
	{plan.Barrier, plan.Tree},
	{plan.Barrier, plan.OneShot},
	{plan.AlltoAll, plan.PointToPoint},
	{plan.Gather, plan.PointToPoint},
	{plan.Scatter, plan.PointToPoint},
}

// pick takes the k-th element of list, round and round.
func pick[T any](list []T, k int) T { return list[k%len(list)] }

// Every schedule, protocol and number of ranks, with the other factors taking
// turns, delivers every contribution exactly once and ends.
func TestEverySchedule(t *testing.T) {
	t.Logf("seed %d", *seedFlag)
	for n := 1; n <= 33; n++ {
		if raceEnabled && n > 5 && n%12 != 9 {
			continue
		}
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			t.Parallel()
			k := n
			rng := rand.New(rand.NewPCG(*seedFlag, uint64(n)))
			for _, sc := range schedules {
				if sc.alg == plan.OneShot && n > 9 && n%12 != 9 {
					continue // between all pairs of ranks, which takes time
				}
				for _, proto := range protocols {
					// The last count takes several loops of a ring of n ranks.
					for _, count := range []int{0, 1, n - 1, 17, 16*n + 5, 30 * n} {
						k++
						w := simWorld{
							size:    n,
							perNode: pick([]int{0, 1, 2, 3, 4, 8, 5}, k),
							hosts:   randomHosts(rng, n),
							payload: pick([]int{16, 64, 24, 240, 33}, k/2),
							seed:    *seedFlag + uint64(k),
							calls: []simCall{{
								spec: plan.Spec{
									Kind: sc.kind, Count: count, Root: k % n,
									Type:    pick([]dtype.Type{dtype.Float32, dtype.Uint8, dtype.Float64, dtype.Half}, k/3),
									InPlace: k%3 == 0 && sc.kind != plan.AlltoAll,
								},
								force: plan.Choice{Algorithm: sc.alg, Protocol: proto, Channels: k % 5},
							}},
						}
						if sc.alg == plan.PointToPoint {
							w.calls[0].spec.Type = dtype.Uint8 // a symbol is a byte
							w.calls[0].spec.Count = min(count, 200)
						}
						_, err := simulate(w)
						require.NoError(t, err, "%+v", w)
					}
				}
			}
		})
	}
}

// randomHosts deals n ranks out to hosts: nil for one host, in order, cyclically, or
// at random, which leaves hosts of any size.
func randomHosts(rng *rand.Rand, n int) []int {
	hosts := make([]int, n)
	deal, count := rng.IntN(5), 1+rng.IntN(n)
	for rank := range hosts {
		switch deal {
		case 0:
			return nil
		case 1:
			hosts[rank] = rank * count / n
		case 2:
			hosts[rank] = rank % count
		default:
			hosts[rank] = rng.IntN(count)
		}
	}
	return hosts
}

// Operations of all kinds follow each other over the same FIFOs, whose steps they
// leave anywhere.
func TestSequencesOfOperations(t *testing.T) {
	count := *programs
	if raceEnabled {
		count = min(count, 50)
	}
	for i := range count {
		seed := *seedFlag + uint64(i)
		w := randomProgram(rand.New(rand.NewPCG(seed, 2)))
		w.seed = seed
		_, err := simulate(w)
		require.NoError(t, err, "-seed %d -programs 1", seed)
	}
}

func randomProgram(rng *rand.Rand) simWorld {
	w := simWorld{
		size:    1 + rng.IntN(9),
		perNode: rng.IntN(4),
		payload: pick([]int{16, 24, 64, 240}, rng.IntN(4)),
	}
	w.hosts = randomHosts(rng, w.size)
	for range 2 + rng.IntN(8) {
		proto := plan.Protocol(rng.IntN(4))
		force := plan.Choice{Protocol: proto, Channels: rng.IntN(5)}
		sc := pick(schedules, rng.IntN(len(schedules)))
		force.Algorithm = sc.alg
		switch rng.IntN(6) {
		case 0:
			w.calls = append(w.calls, randomVectors(rng, w.size, force))
			continue
		case 1:
			w.calls = append(w.calls, randomGroup(rng, w.size, force))
			continue
		}
		spec := plan.Spec{
			Kind: sc.kind, Type: dtype.Uint8, Count: rng.IntN(1 << rng.IntN(11)), Root: rng.IntN(w.size),
			InPlace: rng.IntN(2) == 0 && sc.kind != plan.AlltoAll,
		}
		if sc.alg != plan.PointToPoint {
			spec.Type = dtype.Type(rng.IntN(12))
		}
		w.calls = append(w.calls, simCall{spec: spec, force: force})
	}
	return w
}

// randomVectors is an AlltoAllv with random counts, many of them 0.
func randomVectors(rng *rand.Rand, n int, force plan.Choice) simCall {
	counts := make([][]int, n) // from, to
	for i := range counts {
		for range n {
			counts[i] = append(counts[i], max(0, rng.IntN(300)-100))
		}
	}
	return simCall{
		spec: plan.Spec{Kind: plan.AlltoAllv, Type: dtype.Uint8}, force: force, bytes: 300 * n,
		vectors: func(rank int) plan.Vectors {
			var v plan.Vectors
			for peer := range n {
				v.SendCounts = append(v.SendCounts, counts[rank][peer])
				v.SendOffsets = append(v.SendOffsets, 300*peer+peer%3)
				v.RecvCounts = append(v.RecvCounts, counts[peer][rank])
				v.RecvOffsets = append(v.RecvOffsets, 300*(n-1-peer))
			}
			return v
		},
	}
}

// randomGroup is a group of messages between random pairs of ranks, some of them
// several times, some to self, some empty.
func randomGroup(rng *rand.Rand, n int, force plan.Choice) simCall {
	const room = 200
	type pair struct{ from, to, bytes int }
	pairs := make([]pair, 3*n)
	for i := range pairs {
		pairs[i] = pair{rng.IntN(n), rng.IntN(n), max(0, rng.IntN(room)-20)}
	}
	return simCall{
		force: force, bytes: room * len(pairs),
		group: func(rank int) []plan.Message {
			var msgs []plan.Message
			for i, p := range pairs {
				if p.from == rank {
					msgs = append(msgs, plan.Message{Peer: p.to, Send: true, Offset: room * i, Bytes: p.bytes})
				}
				if p.to == rank {
					msgs = append(msgs, plan.Message{Peer: p.from, Offset: room * (len(pairs) - 1 - i), Bytes: p.bytes})
				}
			}
			return msgs
		},
	}
}

// The counts by which algorithms are compared: a ring AllReduce has 2(n-1) sends
// and as many receives per loop and sends 2(n-1)/n of the buffer, and so on.
func TestStepsAndBytesEqualTheFormulas(t *testing.T) {
	const loops, payload = 3, 64 // bytes, also elements
	for n := 2; n <= 17; n++ {
		for _, tc := range []struct {
			kind        plan.Kind
			count       int // of loops loops
			stepsInLoop int // with a send, summed over ranks
			bytes       int // sent, summed over ranks
		}{
			{plan.AllReduce, loops * payload * n, n * 2 * (n - 1), 2 * (n - 1) * loops * payload * n},
			{plan.AllGather, loops * payload, n * (n - 1), n * (n - 1) * loops * payload},
			{plan.ReduceScatter, loops * payload, n * (n - 1), n * (n - 1) * loops * payload},
			{plan.Broadcast, loops * payload, n - 1, (n - 1) * loops * payload},
			{plan.Reduce, loops * payload, n - 1, (n - 1) * loops * payload},
		} {
			s, err := simulate(simWorld{size: n, payload: payload, seed: *seedFlag, calls: []simCall{{
				spec:  plan.Spec{Kind: tc.kind, Type: dtype.Uint8, Count: tc.count},
				force: plan.Choice{Algorithm: plan.Ring, Protocol: plan.LL, Channels: 1},
			}}})
			require.NoError(t, err)
			sends, recvs, bytes := 0, 0, 0
			for rank := range n {
				sends, recvs, bytes = sends+s.sends[rank], recvs+s.recvs[rank], bytes+s.sentElems[rank]
				if tc.kind <= plan.ReduceScatter && tc.kind != plan.Reduce && tc.kind != plan.Broadcast {
					require.Equal(t, tc.stepsInLoop*loops/n, s.sends[rank], "every rank of a ring works alike")
					require.Equal(t, tc.bytes/n, s.sentElems[rank])
				}
			}
			require.Equal(t, [2]int{tc.stepsInLoop * loops, tc.stepsInLoop * loops}, [2]int{sends, recvs}, "%v n=%d", tc.kind, n)
			require.Equal(t, tc.bytes, bytes, "%v n=%d", tc.kind, n)
		}
	}
}

// In a tree every link carries the buffer once up and once down, and with the
// double tree no rank sends much more than twice the buffer.
func TestTreeTraffic(t *testing.T) {
	for n := 2; n <= 33; n++ {
		const count = 640
		s, err := simulate(simWorld{size: n, perNode: 1, payload: 16, seed: *seedFlag, calls: []simCall{{
			spec:  plan.Spec{Type: dtype.Uint8, Count: count},
			force: plan.Choice{Algorithm: plan.Tree, Protocol: plan.LL128, Channels: 2},
		}}})
		require.NoError(t, err)
		sum := 0
		for rank := range n {
			sum += s.sentElems[rank]
			// Inner in one tree, with two children and a parent, leaf in the
			// other: 3/2 + 1/2 buffers. One rank of an odd number is inner twice.
			limit := 2 * count
			if n%2 == 1 {
				limit += count
			}
			require.LessOrEqual(t, s.sentElems[rank], limit, "n=%d rank %d", n, rank)
		}
		require.Equal(t, 2*(n-1)*count, sum)
	}
}

// A simulator that finds no fault proves something only if it would find one.
func TestSimulatorSeesFaults(t *testing.T) {
	ring := simWorld{size: 4, payload: 16, seed: 1, calls: []simCall{{
		spec:  plan.Spec{Type: dtype.Float32, Count: 64},
		force: plan.Choice{Algorithm: plan.Ring, Protocol: plan.LL, Channels: 1},
	}}}
	tree := ring
	tree.perNode = 1
	tree.calls = []simCall{{
		spec:  plan.Spec{Type: dtype.Float32, Count: 400},
		force: plan.Choice{Algorithm: plan.Tree, Protocol: plan.LL, Channels: 1},
	}}
	mixed := ring
	mixed.calls = nil
	for range 8 {
		mixed.calls = append(mixed.calls,
			simCall{spec: plan.Spec{Kind: plan.Broadcast, Type: dtype.Int8, Count: 1}, force: plan.Choice{Protocol: plan.Simple}},
			simCall{spec: plan.Spec{Type: dtype.Int8, Count: 100}, force: plan.Choice{Algorithm: plan.Ring, Protocol: plan.Simple}})
	}
	thread := func(p *plan.Plan) *plan.Thread { return &p.Channels[0].Threads[0] }
	onRank := func(r int, f func(*plan.Plan)) func(int, int, *plan.Plan) {
		return func(rank, _ int, p *plan.Plan) {
			if rank == r {
				f(p)
			}
		}
	}
	for _, tc := range []struct {
		name  string
		world simWorld
		harm  func(int, int, *plan.Plan)
		want  string
	}{
		{"a lost receive", ring, onRank(2, func(p *plan.Plan) {
			th := thread(p)
			th.Steps = th.Steps[:len(th.Steps)-1]
		}), "combines"},
		{"a rank that does not come", ring, onRank(2, func(p *plan.Plan) { p.Channels = nil }), "deadlock"},
		{"the wrong chunk", ring, onRank(1, func(p *plan.Plan) { thread(p).Steps[1].In = 0 }), "combines"},
		{"a rank that lays out its ring over other hosts", ring, onRank(2, func(p *plan.Plan) {
			w := world(2, 4)
			w.Hosts, w.Force = topo.HostsOf(dealt(4, 2)), ring.calls[0].force
			w.Payload[plan.LL] = ring.payload
			other, err := plan.Build(p.Spec, w)
			require.NoError(t, err)
			*p = *other
		}), "deadlock"},
		{"a chunk that is not combined", ring, onRank(1, func(p *plan.Plan) {
			thread(p).Steps[1] = plan.Step{Action: plan.DoRecvCopySend, In: plan.None, Out: 1}
		}), "want"},
		{"other sizes", ring, onRank(3, func(p *plan.Plan) { thread(p).Last, thread(p).End = 3, thread(p).End-7 }), "sent"},
		{"halves of a tree one after the other", tree, func(_, _ int, p *plan.Plan) {
			p.Channels[0].Concurrent = false
		}, "deadlock"},
		{"steps that are not rounded", mixed, nil, "crosses the end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := tc.world
			_, err := simulate(w)
			require.NoError(t, err, "unbroken")
			w.mutate = tc.harm
			w.noRounding = tc.harm == nil
			_, err = simulate(w)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
