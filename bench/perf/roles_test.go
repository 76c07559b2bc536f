package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"

	"github.com/gollective/gollective/collective"
)

func TestCostTableLayout(t *testing.T) {
	block := collective.Counters{Threads: 3, CPU: 20 * time.Millisecond, Waiting: 15 * time.Millisecond, Turns: 12345, Yields: 100, Parks: 7}
	proxy := collective.Counters{Threads: 2, CPU: time.Second, Waiting: 990 * time.Millisecond, Turns: 1 << 40}
	var table costTable
	w := row{bytes: 8, typ: "float", op: "sum", root: -1, apart: half{costs: costs{10, roles{block, proxy}}}}
	table.row(w)
	w.in, w.bytes = w.apart, 1<<34
	w.in.costs.roles[1] = collective.Counters{}
	table.row(w)
	table.row(w) // -N 2: the same row again
	table.row(row{bytes: 16})
	assert.Equal(t, []string{
		"Processor time by role, of all ranks; useful is what was not spent on waiting",
		"                                                         out-of-place                                         in-place",
		"        size      type   redop    root    role  threads        cpu   useful      polls     yields      parks        cpu   useful      polls     yields      parks",
		"         (B)                                                (s/op)      (%)      (/op)      (/op)      (/op)     (s/op)      (%)      (/op)      (/op)      (/op)",
		"           8     float     sum      -1   block        3  2.000e-03    25.00    1234.50      10.00       0.70        nan      nan        nan        nan        nan",
		"           8     float     sum      -1   proxy        2  1.000e-01     1.00    1.1e+11       0.00       0.00        nan      nan        nan        nan        nan",
		" 17179869184     float     sum      -1   block        3  2.000e-03    25.00    1234.50      10.00       0.70  2.000e-03    25.00    1234.50      10.00       0.70",
		" 17179869184     float     sum      -1   proxy        2  1.000e-01     1.00    1.1e+11       0.00       0.00  0.000e+00     0.00       0.00       0.00       0.00",
	}, table.lines())
	assert.Empty(t, (&costTable{}).lines())
}

// What a rank tells about its roles arrives, and is added up.
func TestRolesAreAddedUp(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var got, want roles
	for range 5 {
		var one roles
		for i := range one {
			n := func() uint64 { return r.Uint64N(1 << 40) }
			one[i] = collective.Counters{
				Turns: n(), Found: n(), Yields: n(), Parks: n(), Bytes: n(), Threads: r.IntN(9),
				Wall: time.Duration(n()), CPU: time.Duration(n()), Waiting: time.Duration(n()),
			}
			want[i].Add(one[i])
		}
		require.Len(t, one.numbers(), numbersOfRoles)
		got.add(one.numbers())
	}
	for i := range want {
		// Seconds as numbers are good to a nanosecond or so.
		for _, d := range []*roles{&got, &want} {
			d[i].Wall, d[i].CPU, d[i].Waiting = d[i].Wall.Round(time.Microsecond), d[i].CPU.Round(time.Microsecond), d[i].Waiting.Round(time.Microsecond)
		}
		assert.InDelta(t, want[i].CPU, got[i].CPU, float64(time.Microsecond))
		got[i].Wall, got[i].CPU, got[i].Waiting = want[i].Wall, want[i].CPU, want[i].Waiting
	}
	assert.Equal(t, want, got)
}

// A run with -C tells about its roles in lines that readers of nccl-tests' table skip,
// and in its report.
func TestRunTellsWhatRolesHaveCost(t *testing.T) {
	o := small("all_reduce", 3)
	o.Algorithm = plan.Ring
	o.CPUTime, o.MaxBytes, o.Type, o.JSON = 1, 40_000, "float", filepath.Join(t.TempDir(), "out.json")
	var out bytes.Buffer
	require.NoError(t, Run(context.Background(), o, &out, os.Stderr))
	lines := 0
	for _, line := range strings.Split(out.String(), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[5] == "block" {
			require.Equal(t, "#", fields[0])
			require.Len(t, fields, 17)
			for _, at := range []int{7, 12} { // out of place, in place
				cpu, err := strconv.ParseFloat(fields[at], 64)
				require.NoError(t, err)
				useful, err := strconv.ParseFloat(fields[at+1], 64)
				require.NoError(t, err)
				require.Positive(t, cpu, line)
				require.GreaterOrEqual(t, useful, 0.0)
				require.LessOrEqual(t, useful, 100.0)
			}
			lines++
		}
	}
	require.Equal(t, len(rows(out.String())), lines)

	raw, err := os.ReadFile(o.JSON)
	require.NoError(t, err)
	var doc struct {
		Results []struct {
			Size  int        `json:"size"`
			Apart []roleJSON `json:"out_of_place_roles"`
			In    []roleJSON `json:"in_place_roles"`
		} `json:"results"`
	}
	require.NoError(t, json.Unmarshal(raw, &doc))
	require.Len(t, doc.Results, lines)
	for _, result := range doc.Results {
		for _, half := range [][]roleJSON{result.Apart, result.In} {
			require.Len(t, half, 1, "no proxies in one process")
			require.Equal(t, "block", half[0].Role)
			require.Positive(t, half[0].CPU)
			require.GreaterOrEqual(t, half[0].Wall, half[0].CPU)
			// Three ranks send and receive four thirds of the data each. The
			// barrier that ends the measurement is in it.
			require.GreaterOrEqual(t, half[0].Bytes, float64(8*result.Size))
		}
	}
}

type roleJSON struct {
	Role  string  `json:"role"`
	CPU   float64 `json:"cpu_us"`
	Wall  float64 `json:"wall_us"`
	Bytes float64 `json:"bytes"`
}
