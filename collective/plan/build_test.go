package plan_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// world has NCCL's default FIFO sizes.
func world(rank, size int) plan.World {
	return plan.World{
		Rank: rank, Size: size, MinChannels: 1, MaxChannels: 8, OrderedStores: true,
		Payload:    [4]int{plan.Simple: 512 << 10, plan.LL: 32 << 10, plan.LL128: 576000},
		P2PPayload: [4]int{plan.Simple: 128 << 10, plan.LL: 32 << 10},
	}
}

func build(t testing.TB, s plan.Spec, w plan.World) *plan.Plan {
	t.Helper()
	p, err := plan.Build(s, w)
	require.NoError(t, err, "%v %+v", s, w)
	return p
}

var protocols = []plan.Protocol{plan.Simple, plan.LL, plan.LL128}

// Each channel's loops and blocks tile the block, or for AllReduce the buffer,
// exactly once, whatever the sizes.
func TestPartsAndLoopsTileTheBuffer(t *testing.T) {
	for _, kind := range []plan.Kind{plan.AllReduce, plan.AllGather, plan.ReduceScatter, plan.Broadcast, plan.Reduce} {
		for _, alg := range []plan.Algorithm{plan.Ring, plan.Tree, plan.OneShot} {
			for _, proto := range protocols {
				for _, payload := range []int{16, 20, 64, 240, 1920, 4000} {
					if raceEnabled && payload != 20 {
						continue
					}
					for _, count := range []int{0, 1, 2, 15, 16, 17, 119, 1023, 9001} {
						for _, size := range []int{2, 3, 8, 17} {
							for channels := range 5 {
								w := world(0, size)
								w.Payload = [4]int{0, payload, payload, payload}
								w.Force = plan.Choice{Algorithm: alg, Protocol: proto, Channels: channels}
								s := plan.Spec{Kind: kind, Type: dtype.Float64, Count: count}
								checkTiling(t, build(t, s, w), payload)
							}
						}
					}
				}
			}
		}
	}
}

func checkTiling(t *testing.T, p *plan.Plan, payload int) {
	where := func() string { return fmt.Sprintf("%v %+v", p.Spec, p.Choice) }
	at := 0
	for id, ch := range p.Channels {
		if ch.ID != id || ch.Threads[0].Begin != at {
			t.Fatalf("%s: channel %d is %d from %d, want %d", where(), id, ch.ID, ch.Threads[0].Begin, at)
		}
		th := ch.Threads[0]
		if limit := th.ChunkSteps * payload; th.Chunk*8 > limit || th.Last > th.Chunk || th.Chunk < 1 || th.Last < 1 {
			t.Fatalf("%s: chunk %d, last %d elements do not fit %d bytes", where(), th.Chunk, th.Last, limit)
		}
		for loop := range th.Loops() {
			for block := range th.Chunks {
				offset, count := th.Range(loop, block)
				if count < 0 || count > th.Chunk || count > 0 && offset != at || offset < 0 || offset+count > th.End {
					t.Fatalf("%s: loop %d block %d is [%d,+%d), want offset %d", where(), loop, block, offset, count, at)
				}
				at += count
			}
		}
		if at != th.End {
			t.Fatalf("%s: channel %d ends at %d, want %d", where(), id, at, th.End)
		}
	}
	if at != p.Spec.Count {
		t.Fatalf("%s: parts end at %d", where(), at)
	}
	if want := max(1, len(p.Channels)); p.Choice.Channels != want {
		t.Fatalf("%s: %d channels", where(), want)
	}
}

func TestOffsetsBeyond32Bits(t *testing.T) {
	const count = 1<<40 + 12345
	for _, tc := range []struct {
		kind plan.Kind
		alg  plan.Algorithm
		end  int // of the highest piece of a buffer
	}{
		{plan.AllReduce, plan.Ring, count},
		{plan.AllReduce, plan.Tree, count},
		{plan.AllReduce, plan.OneShot, count},
		{plan.Broadcast, plan.Ring, count},
		{plan.AllGather, plan.Ring, 4 * count},
		{plan.ReduceScatter, plan.Ring, 4 * count},
	} {
		for _, proto := range protocols {
			w := world(2, 4)
			w.Force = plan.Choice{Algorithm: tc.alg, Protocol: proto}
			p := build(t, plan.Spec{Kind: tc.kind, Type: dtype.Float64, Count: count}, w)
			require.Len(t, p.Channels, 8)
			end, parts := 0, 0
			for _, ch := range p.Channels {
				th := ch.Threads[0]
				require.Equal(t, parts, th.Begin)
				parts = th.End
				loops := th.Loops()
				blocks := th.Chunks
				if th.Stride > 0 {
					blocks = 4
				}
				for block := range blocks {
					first, _ := th.Range(0, block)
					require.GreaterOrEqual(t, first, th.Begin)
					// Neighbouring loops touch, far beyond 2^32 elements too.
					for _, loop := range []int{1, loops / 2, loops - 2} {
						offset, _ := th.Range(loop, block)
						before, _ := th.Range(loop-1, block)
						require.Equal(t, before+th.Chunk*th.Chunks, offset)
					}
					offset, n := th.Range(loops-1, block)
					end = max(end, offset+n)
				}
			}
			require.Equal(t, count, parts)
			require.Equal(t, tc.end, end, "%v %v %v", tc.kind, tc.alg, proto)
		}
	}
}

func TestLastLoopOfRingAllReduceRoundsTo16Bytes(t *testing.T) {
	// NCCL: src/device/all_reduce.h. 3 ranks, 25 floats: chunks of ceil(25/3) = 9,
	// rounded up to 12 elements, so that the last chunk is a single element.
	w := world(0, 3)
	w.Force = plan.Choice{Algorithm: plan.Ring, Protocol: plan.LL, Channels: 1}
	th := build(t, plan.Spec{Type: dtype.Float32, Count: 25}, w).Channels[0].Threads[0]
	require.Equal(t, 1, th.Loops())
	require.Equal(t, 12, th.Last)
	for block, want := range [][2]int{{0, 12}, {12, 12}, {24, 1}} {
		offset, count := th.Range(0, block)
		require.Equal(t, want, [2]int{offset, count})
	}
	// 2 elements: the other chunks are empty and lie inside the buffer.
	th = build(t, plan.Spec{Type: dtype.Float32, Count: 2}, w).Channels[0].Threads[0]
	for block, want := range [][2]int{{0, 2}, {2, 0}, {2, 0}} {
		offset, count := th.Range(0, block)
		require.Equal(t, want, [2]int{offset, count})
	}
}

func TestChunkSizesAreNCCLs(t *testing.T) {
	// 1 GiB on one channel; NCCL: calcCollChunking in src/enqueue.cc.
	for _, tc := range []struct {
		kind        plan.Kind
		alg         plan.Algorithm
		proto       plan.Protocol
		bytes       int
		chunk, slic int
	}{
		{plan.AllReduce, plan.Ring, plan.Simple, 2 << 20, 4, 2},
		{plan.AllGather, plan.Ring, plan.Simple, 2 << 20, 4, 2},
		{plan.ReduceScatter, plan.Ring, plan.Simple, 2 << 20, 4, 2},
		{plan.Broadcast, plan.Ring, plan.Simple, 512 << 10, 1, 1},
		{plan.Reduce, plan.Ring, plan.Simple, 512 << 10, 1, 1},
		{plan.AllReduce, plan.Tree, plan.Simple, 512 << 10, 1, 1},
		{plan.AllReduce, plan.OneShot, plan.Simple, 512 << 10, 1, 1},
		{plan.AllReduce, plan.OneShot, plan.LL, 32 << 10, 1, 1},
		{plan.AllReduce, plan.Ring, plan.LL, 32 << 10, 1, 1},
		{plan.AllReduce, plan.Tree, plan.LL, 32 << 10, 1, 1},
		{plan.AllReduce, plan.Ring, plan.LL128, 576000, 1, 1},
		{plan.AllReduce, plan.Tree, plan.LL128, 576000, 1, 1},
	} {
		w := world(0, 4)
		w.Force = plan.Choice{Algorithm: tc.alg, Protocol: tc.proto, Channels: 1}
		th := build(t, plan.Spec{Kind: tc.kind, Type: dtype.Float32, Count: 1 << 28}, w).Channels[0].Threads[0]
		require.Equal(t, tc.bytes, th.Chunk*4, "%+v", tc)
		require.Equal(t, [2]int{tc.chunk, tc.slic}, [2]int{th.ChunkSteps, th.SliceSteps}, "%+v", tc)
	}
	// A tree in LL128 keeps more chunks in flight: 4 nodes of 1 rank are
	// 1+2+0.1 deep, so 1 MiB should be 3.1*64 chunks, but halving stops at the
	// first value of at most 128 KiB (72000); then 3.1*16 chunks, down to the
	// first value of at most 32 KiB: 18000, which is 17280 in grains.
	w := world(0, 4)
	w.RanksPerNode = 1
	w.Force = plan.Choice{Algorithm: plan.Tree, Protocol: plan.LL128, Channels: 1}
	th := build(t, plan.Spec{Type: dtype.Uint8, Count: 1 << 20}, w).Channels[0].Threads[0]
	require.Equal(t, 17280, th.Chunk)
}

func TestTinyStepsHoldWholeElementsBySlice(t *testing.T) {
	for payload, want := range map[int]int{8: 4, 12: 6, 16: 8, 20: 10, 28: 14} {
		w := world(0, 2)
		w.Payload[plan.Simple] = payload
		w.Force = plan.Choice{Algorithm: plan.Ring, Protocol: plan.Simple, Channels: 1}
		th := build(t, plan.Spec{Type: dtype.Float64, Count: 1000}, w).Channels[0].Threads[0]
		require.Equal(t, want, th.Chunk, "payload %d", payload)
	}
	w := world(0, 2)
	w.Payload[plan.Simple] = 11 // 44 bytes hold 5 doubles, but the slices 2 each
	w.Force = plan.Choice{Algorithm: plan.Ring, Protocol: plan.Simple, Channels: 1}
	require.Equal(t, 4, build(t, plan.Spec{Type: dtype.Float64, Count: 1000}, w).Channels[0].Threads[0].Chunk)
}

func TestSmallCallsUseFewChannels(t *testing.T) {
	// NCCL's minimum of 32 KiB of traffic per channel, an AllReduce's bytes
	// counting twice, in LL another four times.
	for _, tc := range []struct {
		proto plan.Protocol
		bytes int
		want  []int // bytes by channel
	}{
		{plan.Simple, 4, []int{4}},
		{plan.Simple, 32 << 10, []int{32 << 10}},
		{plan.Simple, 64 << 10, []int{32 << 10, 32 << 10}},
		{plan.Simple, 80 << 10, []int{48 << 10, 32 << 10}},
		{plan.LL128, 16 << 10, []int{16 << 10}},
		{plan.LL, 32 << 10, []int{16 << 10, 16 << 10}},
	} {
		w := world(0, 4)
		w.Force = plan.Choice{Algorithm: plan.Ring, Protocol: tc.proto}
		var got []int
		for _, ch := range build(t, plan.Spec{Type: dtype.Uint8, Count: tc.bytes}, w).Channels {
			got = append(got, ch.Threads[0].End-ch.Threads[0].Begin)
		}
		require.Equal(t, tc.want, got, "%v %d bytes", tc.proto, tc.bytes)
	}
}

func TestForcedChannelsShareSmallCalls(t *testing.T) {
	w := world(0, 4)
	w.Force.Channels = 4
	p := build(t, plan.Spec{Type: dtype.Float32, Count: 16}, w)
	require.Len(t, p.Channels, 4)
	p = build(t, plan.Spec{Type: dtype.Float32, Count: 3}, w)
	require.Len(t, p.Channels, 1, "16 bytes are not divided")
	p = build(t, plan.Spec{Type: dtype.Int8, Count: math.MaxInt}, w)
	require.Len(t, p.Channels, 4)
}

func TestTreeChannelsComeInPairs(t *testing.T) {
	for forced := 1; forced <= 8; forced++ {
		for rank := range 5 {
			w := world(rank, 5)
			w.RanksPerNode = 1
			w.Force = plan.Choice{Algorithm: plan.Tree, Channels: forced}
			p := build(t, plan.Spec{Type: dtype.Float32, Count: 1 << 20}, w)
			require.Len(t, p.Channels, max(1, forced/2*2))
			half := max(1, len(p.Channels)/2)
			for id, ch := range p.Channels {
				same := p.Channels[id/half*half].Threads
				require.Equal(t, same[0].To, ch.Threads[0].To)
				require.Equal(t, same[0].From, ch.Threads[0].From)
				root := id/half == 0 && rank == 0 || id/half == 1 && rank == 1
				require.Equal(t, root, ch.Threads[0].Name == "root", "rank %d channel %d", rank, id)
			}
		}
	}
}

func TestTreeHalvesAreConcurrentBeyondOneLoop(t *testing.T) {
	w := world(1, 4)
	w.Payload[plan.LL] = 64
	w.Force = plan.Choice{Algorithm: plan.Tree, Protocol: plan.LL, Channels: 1}
	one := build(t, plan.Spec{Type: dtype.Float32, Count: 16}, w).Channels[0]
	require.Len(t, one.Threads, 2)
	require.False(t, one.Concurrent)
	require.True(t, build(t, plan.Spec{Type: dtype.Float32, Count: 17}, w).Channels[0].Concurrent)
	w.Rank = 0
	require.False(t, build(t, plan.Spec{Type: dtype.Float32, Count: 17}, w).Channels[0].Concurrent, "the root has one thread")
}

func TestBuildRejects(t *testing.T) {
	for _, tc := range []struct {
		name string
		s    plan.Spec
		edit func(*plan.World)
		want string
	}{
		{"negative count", plan.Spec{Count: -1}, nil, "negative count"},
		{"root too large", plan.Spec{Kind: plan.Broadcast, Root: 4}, nil, "root 4 is not in [0,4)"},
		{"root negative", plan.Spec{Kind: plan.Gather, Root: -1}, nil, "root -1 is not in [0,4)"},
		{"peer too large", plan.Spec{Kind: plan.Send, Root: 9}, nil, "peer 9 is not in [0,4)"},
		{"bytes overflow", plan.Spec{Type: dtype.Int64, Count: math.MaxInt/8 + 1}, nil, "more bytes than an int"},
		{"bytes of all ranks overflow", plan.Spec{Kind: plan.AllGather, Count: math.MaxInt/4 + 1}, nil, "more bytes than an int"},
		{"type", plan.Spec{Type: 99}, nil, "unknown element type"},
		{"reduction", plan.Spec{Op: 99}, nil, "unknown reduction"},
		{"kind", plan.Spec{Kind: 99}, nil, "unknown operation"},
		{"no ranks", plan.Spec{}, func(w *plan.World) { w.Size = 0 }, "world of 0 ranks"},
		{"rank", plan.Spec{}, func(w *plan.World) { w.Rank = 4 }, "rank 4 is not in [0,4)"},
		{"hosts of fewer ranks", plan.Spec{}, func(w *plan.World) { w.Hosts = topo.HostsOf([]int{0, 1, 1}) }, "4 ranks, but hosts of 3"},
		{"hosts of more ranks", plan.Spec{}, func(w *plan.World) { w.Hosts = topo.HostsOf(dealt(5, 2)) }, "4 ranks, but hosts of 5"},
		{"hosts of nobody", plan.Spec{}, func(w *plan.World) { w.Hosts = &topo.Hosts{} }, "4 ranks, but hosts of 0"},
		{"alltoall in place", plan.Spec{Kind: plan.AlltoAll, InPlace: true}, nil, "no in-place form"},
		{"alltoallv without counts", plan.Spec{Kind: plan.AlltoAllv}, nil, "needs counts"},
		{"send to self", plan.Spec{Kind: plan.Send, Root: 1, Count: 2}, nil, "sends 1 messages to itself and receives 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := world(1, 4)
			if tc.edit != nil {
				tc.edit(&w)
			}
			_, err := plan.Build(tc.s, w)
			require.ErrorIs(t, err, plan.ErrSpec)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// Hosts that are one change nothing, and hosts that are filled in order are laid out
// like nodes of as many ranks.
func TestHostsInOrderAreNodes(t *testing.T) {
	for _, sc := range schedules {
		for _, size := range []int{4, 7} {
			for rank := range size {
				w := world(rank, size)
				w.Force = plan.Choice{Algorithm: sc.alg, Protocol: plan.Simple}
				s := plan.Spec{Kind: sc.kind, Type: dtype.Float32, Count: 1000}
				one := build(t, s, w)
				w.RanksPerNode = 3
				nodes := build(t, s, w)
				w.RanksPerNode, w.Hosts = 0, topo.HostsOf(make([]int, size))
				require.Equal(t, one, build(t, s, w))
				w.Hosts = topo.HostsOf([]string{"a", "a", "a", "b", "b", "b", "c"}[:size])
				hosts := build(t, s, w)
				require.Equal(t, w.Hosts, hosts.Hosts)
				hosts.Hosts = nil
				for i := range hosts.Channels { // chunks go over the wire in one piece
					for j := range hosts.Channels[i].Threads {
						thread := &hosts.Channels[i].Threads[j]
						if sc.alg == plan.Ring {
							require.Equal(t, thread.ChunkSteps, thread.SliceSteps)
						}
						thread.SliceSteps = nodes.Channels[i].Threads[j].SliceSteps
					}
				}
				require.Equal(t, nodes, hosts)
			}
		}
	}
}

func TestNothingToMove(t *testing.T) {
	for k := plan.AllReduce; k <= plan.Barrier; k++ {
		if k == plan.AlltoAllv || k == plan.Send || k == plan.Recv {
			continue
		}
		alone := build(t, plan.Spec{Kind: k, Type: dtype.Float32, Count: 100}, world(0, 1))
		require.Empty(t, alone.Channels, "%v alone", k)
		if k != plan.Barrier {
			empty := build(t, plan.Spec{Kind: k, Type: dtype.Float32, Op: reduce.Max}, world(1, 4))
			require.Empty(t, empty.Channels, "%v of nothing", k)
		}
	}
	p := build(t, plan.Spec{Kind: plan.Send, Root: 0}, world(1, 4))
	require.Len(t, p.Channels, 1, "an empty message is a message")
}

func TestBarrierMovesOneByte(t *testing.T) {
	p := build(t, plan.Spec{Kind: plan.Barrier}, world(1, 4))
	require.Equal(t, plan.Spec{Kind: plan.Barrier, Type: dtype.Uint8, Count: 1}, p.Spec)
	require.Len(t, p.Channels, 1)
	require.Equal(t, 1, p.Channels[0].Threads[0].End)
}
