package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/dtype"
)

// allowedNames is what a leaves one operation.
func allowedNames(t *testing.T, a Allowed, k Kind) (algorithms, protocols string) {
	t.Helper()
	var as, ps []string
	for _, algorithm := range Algorithms()[1:] {
		if a.algorithms[k].has(int(algorithm)) {
			as = append(as, algorithm.String())
		}
	}
	for protocol := Simple; protocol <= LL128; protocol++ {
		if a.protocols[k].has(int(protocol)) {
			ps = append(ps, protocol.String())
		}
	}
	return strings.Join(as, ","), strings.Join(ps, ",")
}

func TestListsOfAlgorithmsAllowWhatTheyName(t *testing.T) {
	const all = "ring,tree,oneshot,twoshot"
	for _, tc := range []struct {
		list                            string
		allReduce, barrier, broadcastOf string
	}{
		{"ring", "ring", "ring", "ring"},
		{"tree", "tree", "tree", all}, // a broadcast has no tree: ignored
		{"Ring,TREE", "ring,tree", "ring,tree", "ring"},
		{"oneShot", "oneshot", "oneshot", "oneshot"},
		{"^ring", "tree,oneshot,twoshot", "tree,oneshot,twoshot", "oneshot,twoshot"},
		{"^tree", "ring,oneshot,twoshot", "ring,oneshot,twoshot", "ring,oneshot,twoshot"},
		{"^tree,oneshot", "ring,twoshot", "ring,twoshot", "ring,twoshot"},
		{"twoshot", "twoshot", "twoshot", "twoshot"},
		{"allreduce:tree", "tree", "tree", all},
		{"ring;allreduce:^ring", "tree,oneshot,twoshot", "tree,oneshot,twoshot", "ring"},
		{"ring,tree;allreduce:tree;broadcast:ring", "tree", "tree", "ring"},
		{" ring , tree ; all_reduce : ^ tree ", "ring,oneshot,twoshot", "ring,oneshot,twoshot", "ring"},
		{"ReduceScatter:ring", all, all, all},
	} {
		var a Allowed
		require.NoError(t, a.ParseAlgorithms(tc.list), tc.list)
		for kind, want := range map[Kind]string{AllReduce: tc.allReduce, Barrier: tc.barrier, Broadcast: tc.broadcastOf} {
			got, _ := allowedNames(t, a, kind)
			require.Equal(t, want, got, "%q: %v", tc.list, kind)
		}
	}
}

func TestListsOfProtocolsAllowWhatTheyName(t *testing.T) {
	for _, tc := range []struct {
		list                  string
		allReduce, gather, sr string
	}{
		{"LL,ll128", "ll,ll128", "ll,ll128", "ll"},
		{"^simple", "ll,ll128", "ll,ll128", "ll"},
		{"ll128", "ll128", "ll128", "simple,ll,ll128"}, // messages have no ll128: ignored
		{"allgather:simple;sendrecv:ll", "simple,ll,ll128", "simple", "ll"},
		{"^ll,ll128;allgather:^simple", "simple", "ll,ll128", "simple"},
	} {
		var a Allowed
		require.NoError(t, a.ParseProtocols(tc.list), tc.list)
		for kind, want := range map[Kind]string{
			AllReduce: tc.allReduce, AllGather: tc.gather,
			Send: tc.sr, Recv: tc.sr, AlltoAll: tc.sr, AlltoAllv: tc.sr, Gather: tc.sr, Scatter: tc.sr,
		} {
			_, got := allowedNames(t, a, kind)
			require.Equal(t, want, got, "%q: %v", tc.list, kind)
		}
	}
}

func TestListsThatSayNothingSensibleAreRefused(t *testing.T) {
	for list, reason := range map[string]string{
		"":                              `unknown algorithm "", accepted are ring, tree, oneshot`,
		"rign":                          `unknown algorithm "rign", accepted are ring, tree, oneshot`,
		"auto,ring":                     `unknown algorithm "auto"`,
		"p2p,ring":                      `unknown algorithm "p2p"`,
		"ring,":                         `unknown algorithm ""`,
		"ring;":                         `unknown algorithm ""`,
		"ring;tree":                     `"tree" names no collective, which only the first entry may do without`,
		"allreduce:ring;tree":           `"tree" names no collective`,
		"^ring,tree,oneshot,twoshot":    `"^ring,tree,oneshot,twoshot" leaves no algorithm`,
		"^^ring":                        `unknown algorithm "^ring"`,
		"ring,^tree":                    `unknown algorithm "^tree"`,
		"broadcast:tree":                `"broadcast:tree" leaves no algorithm for broadcast`,
		"reduce:^ring,oneshot,twoshot":  `"reduce:^ring,oneshot,twoshot" leaves no algorithm for reduce`,
		"allreduce:ring;AllReduce:ring": "allreduce is named twice",
		"gather:ring":                   `unknown collective "gather", accepted are allreduce, reduce, broadcast, allgather, reducescatter`,
		":ring":                         `unknown collective ""`,
		"allreduce:ring:tree":           `unknown algorithm "ring:tree"`,
	} {
		var a Allowed
		before := a
		err := a.ParseAlgorithms(list)
		require.ErrorContains(t, err, reason, list)
		require.Equal(t, before, a, "%q: refused, and yet something changed", list)
	}
	var a Allowed
	require.ErrorContains(t, a.ParseProtocols("sendrecv:ll128"), `"sendrecv:ll128" leaves no protocol for sendrecv`)
	require.ErrorContains(t, a.ParseProtocols("allreduce:tree"), `unknown protocol "tree", accepted are simple, ll, ll128`)
}

// TestChoicesAreAmongWhatIsAllowed draws random lists from their meaning, and
// compares what Choose and the cutting of messages take with the meaning.
func TestChoicesAreAmongWhatIsAllowed(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	random := func(names []string) (text string, set map[string]bool) {
		set = make(map[string]bool)
		except := r.IntN(2) == 0
		var listed []string
		for _, name := range r.Perm(len(names))[:1+r.IntN(len(names)-1)] {
			listed = append(listed, names[name])
		}
		text = strings.Join(listed, ",")
		for _, name := range names {
			set[name] = strings.Contains(","+text+",", ","+name+",") != except
		}
		if except {
			text = "^" + text
		}
		return strings.ToUpper(text), set
	}
	for range 2000 {
		kind := []Kind{AllReduce, Broadcast, AllGather, ReduceScatter, Reduce, Barrier}[r.IntN(6)]
		algorithms, as := random([]string{"ring", "tree", "oneshot", "twoshot"})
		protocols, ps := random([]string{"simple", "ll", "ll128", "direct"})
		messages, ms := random([]string{"simple", "ll"})
		var a Allowed
		require.NoError(t, a.ParseAlgorithms(algorithms))
		require.NoError(t, a.ParseProtocols(fmt.Sprintf("%s;sendrecv:%s", protocols, messages)))
		w := World{
			Sight: Sight(r.IntN(3)), DeskPayload: 1 << r.IntN(20),
			Size: 1 + r.IntN(9), RanksPerNode: r.IntN(3), MaxChannels: 1 + r.IntN(3), OrderedStores: true, Allowed: a,
			Payload: [4]int{0, 1 << 16, 1 << 12, 1 << 14}, P2PPayload: [4]int{0, 1 << 16, 1 << 12, 0},
		}
		count := r.IntN(1 << (1 + r.IntN(24)))
		c, err := Choose(Spec{Kind: kind, Type: dtype.Float32, Count: count}, w)
		require.NoError(t, err)
		// What a kind does not have, or this world, is as good as not listed; a list of
		// nothing else is ignored.
		can := func(name string) bool {
			switch name {
			case "tree":
				return kind == AllReduce || kind == Barrier
			case "twoshot":
				return w.Sight != SeesNothing && kind != Barrier && ps["direct"]
			}
			return true
		}
		if slices.ContainsFunc([]string{"ring", "tree", "oneshot", "twoshot"}, func(name string) bool { return as[name] && can(name) }) {
			require.True(t, as[c.Algorithm.String()], "%v: %v among %q", kind, c.Algorithm, algorithms)
		}
		if ps["simple"] || ps["ll"] || ps["ll128"] {
			require.True(t, ps[c.Protocol.String()], "%v among %q", c.Protocol, protocols)
		}

		c, err = Choose(Spec{Kind: Gather, Type: dtype.Float32, Count: count}, w)
		require.NoError(t, err)
		require.True(t, ms[c.Protocol.String()], "%v among %q", c.Protocol, messages)
	}
}

func TestAForcedChoiceWinsOverWhatIsAllowed(t *testing.T) {
	w := World{Size: 4, OrderedStores: true, Payload: [4]int{0, 1 << 16, 1 << 12, 1 << 14}, Force: Choice{Algorithm: Tree, Protocol: LL128}}
	require.NoError(t, w.Allowed.ParseAlgorithms("ring"))
	require.NoError(t, w.Allowed.ParseProtocols("simple"))
	c, err := Choose(Spec{Kind: AllReduce, Type: dtype.Float32, Count: 100}, w)
	require.NoError(t, err)
	require.Equal(t, Tree, c.Algorithm)
	require.Equal(t, LL128, c.Protocol)
}

func FuzzLists(f *testing.F) {
	for _, s := range []string{"ring", "^ring", "ring,tree;allreduce:tree;broadcast:ring", "ll,simple;sendrecv:ll", "a:b:c", ";;", "^", "İ:ring", "ſimple"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		for _, parse := range []func(*Allowed, string) error{(*Allowed).ParseAlgorithms, (*Allowed).ParseProtocols} {
			var a, again Allowed
			if parse(&a, list) != nil {
				if a != again {
					t.Fatalf("%q is refused, and yet something is excluded: %v", list, a)
				}
				continue
			}
			// What is printed means the same.
			algorithms, protocols, _ := strings.Cut(a.String(), " ")
			for text, parse := range map[string]func(*Allowed, string) error{algorithms: (*Allowed).ParseAlgorithms, protocols: (*Allowed).ParseProtocols} {
				if text != "auto" && parse(&again, text) != nil {
					t.Fatalf("%q prints as %q, which cannot be read", list, text)
				}
			}
			for k := range Kind(kindsCount) {
				for i := range 8 {
					if a.algorithms[k].has(i) != again.algorithms[k].has(i) || a.protocols[k].has(i) != again.protocols[k].has(i) {
						t.Fatalf("%q prints as %q, which means something else for %v", list, a, k)
					}
				}
			}
		}
	})
}
