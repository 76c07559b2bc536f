package plan_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

var rewrite = flag.Bool("rewrite", false, "write the golden plans anew")

// Each golden file holds a script, ----, and what the script prints. A script
// line is a collective and key=value arguments.
func TestGoldenPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			script, want, _ := strings.Cut(strings.ReplaceAll(string(text), "\r", ""), "----\n")
			var got strings.Builder
			for line := range strings.Lines(script) {
				s, w := parseScript(t, strings.Fields(line))
				_, err := build(t, s, w).WriteTo(&got)
				require.NoError(t, err)
			}
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(script+"----\n"+got.String()), 0o644))
				return
			}
			require.Equal(t, want, got.String())
		})
	}
}

func parseScript(t *testing.T, words []string) (plan.Spec, plan.World) {
	kind, err := plan.ParseKind(words[0])
	require.NoError(t, err)
	s := plan.Spec{Kind: kind, Type: dtype.Float32}
	w := world(0, 1)
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		number, _ := strconv.Atoi(value)
		var err error
		switch key {
		case "ranks":
			w.Size = number
		case "rank":
			w.Rank = number
		case "pernode":
			w.RanksPerNode = number
		case "hosts":
			w.Hosts = topo.HostsOf(strings.Split(value, ","))
		case "carried":
			w.Carried = true
		case "count":
			s.Count = number
		case "root":
			s.Root = number
		case "inplace":
			s.InPlace = true
		case "type":
			s.Type, err = dtype.Parse(value)
		case "op":
			s.Op, err = reduce.ParseOp(value)
		case "algo":
			w.Force.Algorithm, err = plan.ParseAlgorithm(value)
		case "proto":
			w.Force.Protocol, err = plan.ParseProtocol(value)
		case "channels":
			w.Force.Channels = number
		case "sight":
			w.Sight = map[string]plan.Sight{"some": plan.SeesSome, "everything": plan.SeesEverything}[value]
		case "desk":
			w.DeskPayload = number
		case "payload":
			w.Payload = [4]int{0, number, number, number}
		case "p2p":
			w.P2PPayload = [4]int{0, number, number, 0}
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		require.NoError(t, err, word)
	}
	return s, w
}

// Of many hosts, and of a host's scattered ranks, the plan names some.
func TestManyHostsAreCut(t *testing.T) {
	keys := make([]int, 200)
	for rank := range keys {
		keys[rank] = min(rank%5, 1)
		if rank >= 100 {
			keys[rank] = rank / 10
		}
	}
	w := world(0, len(keys))
	w.Hosts = topo.HostsOf(keys)
	lines := strings.Split(build(t, plan.Spec{Type: dtype.Float32, Count: 1}, w).String(), "\n")
	require.Equal(t, []string{
		"host 0: ranks 0 5 10 15 20 25 30 35 40 45 50 55 60 65 70 75 … 4 more",
		"host 1: ranks 1-4 6-9 11-14 16-19 21-24 26-29 31-34 36-39 41-44 46-49 51-54 56-59 61-64 66-69 71-74 76-79 … 16 more",
		"host 2: ranks 100-109",
	}, lines[1:4])
	require.Equal(t, []string{
		"host 7: ranks 150-159", "… 3 hosts left out", "host 11: ranks 190-199",
	}, lines[8:11])
}

func TestStringIsWhatWriteToWrites(t *testing.T) {
	p := build(t, plan.Spec{Type: dtype.Float32, Count: 100}, world(0, 4))
	var b strings.Builder
	n, err := p.WriteTo(&b)
	require.NoError(t, err)
	require.Equal(t, p.String(), b.String())
	require.EqualValues(t, b.Len(), n)
}

func TestMessagesPrintWithoutACall(t *testing.T) {
	w := world(0, 2)
	p, err := w.PointToPoint([]plan.Message{{Peer: 1, Send: true, Bytes: 10}, {Peer: 1, Send: true, Offset: 10, Bytes: 6}})
	require.NoError(t, err)
	require.Equal(t, `messages: p2p, ll, 8 channels; rank 0 of 2
channel 4: 2 transfers
  send to 1            round 1  bytes [0,10), ll, chunk 32768, opens the message
  send to 1            round 1  bytes [10,16), ll, chunk 32768, epoch 1, opens the message
`, p.String())
}
