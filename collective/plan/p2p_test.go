package plan_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
)

func messages(t testing.TB, w plan.World, msgs ...plan.Message) *plan.Plan {
	t.Helper()
	p, err := w.PointToPoint(msgs)
	require.NoError(t, err)
	return p
}

// sendRounds is the round of a message from rank to each peer.
func sendRounds(t *testing.T, w plan.World) []int {
	rounds := make([]int, w.Size)
	for _, ch := range build(t, plan.Spec{Kind: plan.AlltoAll, Count: 1}, w).Channels {
		for _, tr := range ch.Transfers {
			if tr.Send {
				rounds[tr.Peer] = tr.Round
			}
		}
	}
	return rounds
}

func TestGroupDistancesAreTakenInQuadraticOrder(t *testing.T) {
	// NCCL: src/init.cc. 16 groups of one rank, seen from rank 5.
	w := world(5, 16)
	w.RanksPerNode = 1
	rounds := sendRounds(t, w)
	for round, delta := range []int{0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8} {
		require.Equal(t, round, rounds[(5+delta)%16], "distance %d", delta)
	}
}

func TestGroupsOfEightAreTakenOneDistanceAtATime(t *testing.T) {
	// 24 ranks on one node are 3 groups of 8, at distances 0, 1 and (after 3,
	// which does not exist, and 6 mod 4) 2. From rank 1: first its own group.
	rounds := sendRounds(t, world(1, 24))
	want := make([]int, 24)
	for peer := range want {
		within := (peer%8 - 1 + 8) % 8
		want[peer] = 8*(peer/8) + within
	}
	require.Equal(t, want, rounds)
}

func TestEachRoundIsAPermutation(t *testing.T) {
	t.Logf("seed %d", *seedFlag)
	rng := rand.New(rand.NewPCG(*seedFlag, 6))
	for size := 1; size <= 40; size++ {
		for _, perNode := range []int{0, 1, 2, 3, 4, 8, 12} {
			for _, hosts := range [][]int{nil, dealt(size, 1+size/8), randomHosts(rng, size)} {
				w := world(0, size)
				w.RanksPerNode = perNode
				if hosts != nil {
					w.Hosts = topo.HostsOf(hosts)
				}
				checkRounds(t, w)
			}
		}
	}
}

func checkRounds(t *testing.T, w plan.World) {
	target := make(map[[2]int]bool) // round and peer
	for w.Rank = range w.Size {
		seen := make(map[int]bool)
		for peer, round := range sendRounds(t, w) {
			if seen[round] || target[[2]int{round, peer}] || round >= w.Size {
				t.Fatalf("%+v: round %d, to rank %d, is not its own", w, round, peer)
			}
			seen[round], target[[2]int{round, peer}] = true, true
		}
	}
}

// Ranks that are dealt out cyclically to two hosts of 8 are two groups: 8 rounds
// inside the host, then 8 to the other.
func TestFirstRoundsStayInAHost(t *testing.T) {
	for rank := range 16 {
		w := world(rank, 16)
		w.Hosts = topo.HostsOf(dealt(16, 2))
		for peer, round := range sendRounds(t, w) {
			place, distance := rank/2, (peer/2-rank/2+8)%8
			require.Equal(t, 8*(peer%2^rank%2)+distance, round, "from %d (place %d) to %d", rank, place, peer)
		}
	}
}

// Parts tile the message, all but the last in multiples of 4 KiB, on different
// channels, the first on a channel that the size does not move; and both ends
// agree.
func TestParts(t *testing.T) {
	for _, size := range []int{2, 3, 16, 24} {
		for _, channels := range []int{1, 2, 3, 4, 8} {
			for _, forced := range []int{0, 1, 2, 4, 7} {
				for _, bytes := range []int{0, 1, 4095, 4096, 4097, 16 << 10, 16<<10 + 1, 40000, 1 << 20, 9 << 20, 1<<40 + 7} {
					w := world(0, size)
					w.MaxChannels, w.Force.Channels = channels, forced
					peer := size - 1
					empty := messages(t, w, plan.Message{Peer: peer, Send: true})
					sent := messages(t, w, plan.Message{Peer: peer, Send: true, Bytes: bytes})
					w.Rank = peer
					received := messages(t, w, plan.Message{Peer: 0, Bytes: bytes})
					checkParts(t, sent, bytes, empty.Channels[0].ID, 16<<10)
					require.Len(t, received.Channels, len(sent.Channels))
					for i, ch := range sent.Channels {
						s, r := ch.Transfers[0], received.Channels[i].Transfers[0]
						require.Equal(t, ch.ID, received.Channels[i].ID)
						s.Message.Send, s.Message.Peer = false, 0
						require.Equal(t, s, r)
					}
				}
			}
		}
	}
}

func checkParts(t *testing.T, p *plan.Plan, bytes, base, mostLL int) {
	parts := make(map[int]plan.Transfer) // by offset
	for _, ch := range p.Channels {
		require.Len(t, ch.Transfers, 1)
		tr := ch.Transfers[0]
		require.Equal(t, tr.First, ch.ID == base, "the first part is on channel %d", base)
		require.Equal(t, bytes, tr.Total)
		ll := tr.Bytes <= mostLL
		require.Equal(t, ll || tr.Offset > 0 && tr.Protocol == plan.LL, tr.Protocol == plan.LL)
		parts[tr.Offset] = tr
	}
	at := 0
	for range p.Channels {
		tr, ok := parts[at]
		require.True(t, ok, "no part begins at %d", at)
		require.Equal(t, at == 0, tr.First)
		require.Zero(t, at%4096)
		at += tr.Bytes
	}
	require.Equal(t, bytes, at)
}

// Whether a message goes over the wire both of its ends know, from any ranks.
func TestPartsOverTheWire(t *testing.T) {
	for _, carried := range []bool{false, true} {
		for _, bytes := range []int{0, 1, 1000, 3000, 16 << 10, 100 << 10, 128<<10 + 1, 9 << 20} {
			for _, peer := range []int{1, 2} { // on another host, on the same
				w := world(0, 5)
				w.Hosts, w.Carried = topo.HostsOf(dealt(5, 2)), carried
				empty := messages(t, w, plan.Message{Peer: peer, Send: true})
				sent := messages(t, w, plan.Message{Peer: peer, Send: true, Bytes: bytes})
				w.Rank = peer
				received := messages(t, w, plan.Message{Peer: 0, Bytes: bytes})
				mostLL := 16 << 10
				if carried || peer == 1 {
					mostLL = plan.WireLLPart()
				}
				checkParts(t, sent, bytes, empty.Channels[0].ID, mostLL)
				checkParts(t, received, bytes, empty.Channels[0].ID, mostLL)
				require.Equal(t, sent.Choice, received.Choice)
				for i, ch := range sent.Channels {
					require.Equal(t, ch.ID, received.Channels[i].ID)
				}
				// NCCL: a part over the network has half a chunk, 64 KiB here.
				if (carried || peer == 1) && bytes <= 64<<10 {
					require.Len(t, sent.Channels, 1)
				}
			}
		}
	}
}

// LL sends twice the bytes: over the wire it is for as long as they take no more
// than what it saves.
func TestLLOverTheWireEndsWhereSimpleIsFaster(t *testing.T) {
	most := plan.WireLLPart()
	require.True(t, most >= 0 && most <= 16<<10, "%d", most)
	micros := func(p plan.Protocol, bytes int) float64 {
		latency, bandwidth := plan.WireHop(p)
		return latency + float64(bytes)/1000/bandwidth
	}
	if most > 0 {
		require.LessOrEqual(t, micros(plan.LL, most), micros(plan.Simple, most)+1e-9)
	}
	if most < 16<<10 {
		require.Greater(t, micros(plan.LL, most+1), micros(plan.Simple, most+1))
	}
}

// Where the protocol depends on the peer, a call of many has none to tell.
func TestProtocolOfMessagesToSeveralHosts(t *testing.T) {
	between := 16 << 10 // LL in memory
	for _, tc := range []struct {
		name    string
		hosts   []int
		carried bool
		bytes   int
		want    plan.Protocol
	}{
		{"one host", []int{0, 0, 0}, false, between, plan.LL},
		{"large", []int{0, 1, 0}, false, 1 << 20, plan.Simple},
		{"all apart", []int{0, 1, 2}, false, between, overTheWire(between)},
		{"all carried", []int{0, 0, 0}, true, between, overTheWire(between)},
		{"both", []int{0, 1, 0}, false, between, both(plan.LL, overTheWire(between))},
	} {
		w := world(0, 3)
		w.Hosts, w.Carried = topo.HostsOf(tc.hosts), tc.carried
		s := plan.Spec{Kind: plan.AlltoAll, Type: dtype.Uint8, Count: tc.bytes}
		require.Equal(t, tc.want, choose(t, s, w).Protocol, tc.name)
		require.Equal(t, tc.want, build(t, s, w).Choice.Protocol, tc.name)
	}
}

func overTheWire(bytes int) plan.Protocol {
	if bytes <= plan.WireLLPart() {
		return plan.LL
	}
	return plan.Simple
}

func both(a, b plan.Protocol) plan.Protocol {
	if a == b {
		return a
	}
	return plan.AutoProtocol
}

func TestRoundsSpreadOverChannelsInReversedBits(t *testing.T) {
	// NCCL: ncclP2pChannelBaseForRound. One node: rounds 0..7 begin on channels
	// 0 4 2 6 1 5 3 7.
	w := world(0, 8)
	p := build(t, plan.Spec{Kind: plan.AlltoAll, Count: 1}, w)
	byRound := make([]int, 8)
	for _, ch := range p.Channels {
		for _, tr := range ch.Transfers {
			byRound[tr.Round] = ch.ID
		}
	}
	require.Equal(t, []int{0, 4, 2, 6, 1, 5, 3, 7}, byRound)
	// Several nodes: a group's rounds share a channel.
	w.RanksPerNode = 4
	for _, ch := range build(t, plan.Spec{Kind: plan.AlltoAll, Count: 1}, w).Channels {
		for _, tr := range ch.Transfers {
			require.Equal(t, tr.Round/4*4, ch.ID)
		}
	}
}

func TestRepeatedMessagesKeepTheirOrder(t *testing.T) {
	w := world(0, 4)
	w.MaxChannels = 1
	var msgs []plan.Message
	for i := range 3 {
		msgs = append(msgs,
			plan.Message{Call: 3 * i, Peer: 3, Send: true, Bytes: i},
			plan.Message{Call: 3*i + 1, Peer: 3, Bytes: i},
			plan.Message{Call: 3*i + 2, Peer: 1, Send: true, Bytes: i})
	}
	var got []string
	for _, tr := range messages(t, w, msgs...).Channels[0].Transfers {
		got = append(got, fmt.Sprintf("epoch %d round %d peer %d send %v call %d", tr.Epoch, tr.Round, tr.Peer, tr.Send, tr.Call))
	}
	// 4 ranks are one group: rounds are distances.
	require.Equal(t, []string{
		"epoch 0 round 1 peer 1 send true call 2",
		"epoch 0 round 1 peer 3 send false call 1",
		"epoch 0 round 3 peer 3 send true call 0",
		"epoch 1 round 1 peer 1 send true call 5",
		"epoch 1 round 1 peer 3 send false call 4",
		"epoch 1 round 3 peer 3 send true call 3",
		"epoch 2 round 1 peer 1 send true call 8",
		"epoch 2 round 1 peer 3 send false call 7",
		"epoch 2 round 3 peer 3 send true call 6",
	}, got)
}

func TestMessagesToSelfArePaired(t *testing.T) {
	for _, size := range []int{1, 3} {
		w := world(0, size)
		p := messages(t, w,
			plan.Message{Call: 0, Peer: 0, Send: true, Offset: 4, Bytes: 8},
			plan.Message{Call: 1, Peer: 0, Send: true, Bytes: 2},
			plan.Message{Call: 2, Peer: 0, Offset: 16, Bytes: 8},
			plan.Message{Call: 3, Peer: 0, Bytes: 2})
		require.Len(t, p.Channels, 1)
		require.Equal(t, []plan.Copy{
			{From: 0, To: 2, FromOffset: 4, ToOffset: 16, Bytes: 8},
			{From: 1, To: 3, Bytes: 2},
		}, p.Channels[0].Copies)
		require.Empty(t, p.Channels[0].Transfers)
		for _, tc := range []struct {
			msgs []plan.Message
			want string
		}{
			{[]plan.Message{{Peer: 0, Bytes: 3}}, "sends 0 messages to itself and receives 1"},
			{[]plan.Message{{Peer: 0, Bytes: 3}, {Peer: 0, Send: true, Bytes: 4}}, "sends 4 bytes to itself but receives 3"},
		} {
			_, err := w.PointToPoint(tc.msgs)
			require.ErrorIs(t, err, plan.ErrSpec)
			require.ErrorContains(t, err, tc.want)
		}
	}
}

func TestPointToPointRejects(t *testing.T) {
	for _, m := range []plan.Message{
		{Peer: 3}, {Peer: -1}, {Peer: 1, Bytes: -1}, {Peer: 1, Offset: -1}, {Peer: 1, Offset: 2, Bytes: math.MaxInt},
	} {
		_, err := world(0, 3).PointToPoint([]plan.Message{m})
		require.ErrorIs(t, err, plan.ErrSpec, "%+v", m)
	}
	w := world(0, 3)
	w.Hosts = topo.HostsOf([]int{0, 1})
	_, err := w.PointToPoint(nil)
	require.ErrorIs(t, err, plan.ErrSpec)
	require.ErrorContains(t, err, "3 ranks, but hosts of 2")
	w = world(0, 3)
	w.Force.Protocol, w.OrderedStores = plan.LL, false
	_, err = w.PointToPoint([]plan.Message{{Peer: 1}})
	require.ErrorIs(t, err, plan.ErrUnordered)
	w.Force.Protocol, w.P2PPayload = plan.Simple, [4]int{}
	_, err = w.PointToPoint([]plan.Message{{Peer: 1}})
	require.ErrorIs(t, err, plan.ErrNoRoom)
}

func TestNoMessages(t *testing.T) {
	require.Empty(t, messages(t, world(0, 3)).Channels)
}

func TestProtocolOfMessages(t *testing.T) {
	for _, tc := range []struct {
		name    string
		bytes   int
		forced  plan.Protocol
		ordered bool
		want    plan.Protocol
	}{
		{"small", 100, 0, true, plan.LL},
		{"two parts of 16 KiB", 32 << 10, 0, true, plan.LL},
		{"large", 32<<10 + 1, 0, true, plan.Simple},
		{"small without order", 100, 0, false, plan.Simple},
		{"small forced", 100, plan.Simple, true, plan.Simple},
		{"large forced", 1 << 20, plan.LL, true, plan.LL},
		{"LL128 does not exist here", 100, plan.LL128, true, plan.LL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := world(0, 2)
			w.Force.Protocol, w.OrderedStores = tc.forced, tc.ordered
			s := plan.Spec{Kind: plan.Send, Type: dtype.Int8, Count: tc.bytes, Root: 1}
			p := build(t, s, w)
			require.Equal(t, tc.want, p.Choice.Protocol)
			for _, ch := range p.Channels {
				require.Equal(t, tc.want, ch.Transfers[0].Protocol)
				require.Equal(t, w.P2PPayload[tc.want], ch.Transfers[0].Chunk)
			}
			c, err := plan.Choose(s, w)
			require.NoError(t, err)
			require.Equal(t, p.Choice, c)
		})
	}
}

func TestInPlaceRootKeepsItsPiece(t *testing.T) {
	for _, kind := range []plan.Kind{plan.Gather, plan.Scatter} {
		for rank := range 3 {
			s := plan.Spec{Kind: kind, Count: 4, Root: 1, InPlace: true}
			for _, ch := range build(t, s, world(rank, 3)).Channels {
				require.Empty(t, ch.Copies)
			}
			s.InPlace = false
			copies := 0
			for _, ch := range build(t, s, world(rank, 3)).Channels {
				copies += len(ch.Copies)
			}
			require.Equal(t, rank == 1, copies == 1)
		}
	}
}

func TestVectors(t *testing.T) {
	w := world(1, 2)
	s := plan.Spec{Kind: plan.AlltoAllv, Type: dtype.Float32}
	good := plan.Vectors{
		SendCounts: []int{3, 1}, SendOffsets: []int{0, 3},
		RecvCounts: []int{0, 1}, RecvOffsets: []int{7, 2},
	}
	msgs, err := s.MessagesV(w, 5, good)
	require.NoError(t, err)
	require.Equal(t, []plan.Message{
		{Call: 5, Peer: 0, Send: true, Offset: 0, Bytes: 12},
		{Call: 5, Peer: 1, Send: true, Offset: 12, Bytes: 4},
		{Call: 5, Peer: 0, Offset: 28, Bytes: 0},
		{Call: 5, Peer: 1, Offset: 8, Bytes: 4},
	}, msgs)
	p, err := plan.BuildAlltoAllv(s, w, good)
	require.NoError(t, err)
	require.Equal(t, s, p.Spec)
	for name, bad := range map[string]func(*plan.Vectors, *plan.Spec){
		"too few counts":       func(v *plan.Vectors, _ *plan.Spec) { v.SendCounts = v.SendCounts[:1] },
		"too many offsets":     func(v *plan.Vectors, _ *plan.Spec) { v.RecvOffsets = []int{1, 2, 3} },
		"negative count":       func(v *plan.Vectors, _ *plan.Spec) { v.RecvCounts = []int{-1, 1} },
		"negative offset":      func(v *plan.Vectors, _ *plan.Spec) { v.SendOffsets = []int{0, -1} },
		"bytes overflow":       func(v *plan.Vectors, _ *plan.Spec) { v.SendCounts = []int{math.MaxInt / 2, 1} },
		"end overflows":        func(v *plan.Vectors, _ *plan.Spec) { v.SendOffsets = []int{math.MaxInt / 4, 1} },
		"own piece mismatched": func(v *plan.Vectors, _ *plan.Spec) { v.SendCounts = []int{3, 2} },
		"another operation":    func(_ *plan.Vectors, s *plan.Spec) { s.Kind = plan.AlltoAll },
		"a count":              func(_ *plan.Vectors, s *plan.Spec) { s.Count = 1 },
		"in place":             func(_ *plan.Vectors, s *plan.Spec) { s.InPlace = true },
	} {
		v, s := good, s
		bad(&v, &s)
		_, err := plan.BuildAlltoAllv(s, w, v)
		require.ErrorIs(t, err, plan.ErrSpec, name)
	}
}

func TestMessagesOfACollectiveAreRefused(t *testing.T) {
	_, err := plan.Spec{Kind: plan.AllReduce}.Messages(world(0, 2), 0)
	require.ErrorIs(t, err, plan.ErrSpec)
	_, err = plan.Spec{Kind: plan.Gather, Root: 7}.Messages(world(0, 2), 0)
	require.ErrorIs(t, err, plan.ErrSpec)
}
