package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// small are options of a run that takes no time.
func small(name string, ranks int) Options {
	o := DefaultOptions()
	o.Collective, o.Devices = name, ranks
	o.MinBytes, o.MaxBytes, o.StepFactor = 4, 5000, 7
	o.Iters, o.Warmup = 2, 1
	o.Type, o.Op = "all", "all"
	return o
}

// rows are the fields of the table's rows.
func rows(out string) [][]string {
	var all [][]string
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "#" && !strings.HasPrefix(line, "#") {
			all = append(all, fields)
		}
	}
	return all
}

// Every collective, element type, operator and root gives right results.
func TestRunEverything(t *testing.T) {
	for _, name := range Collectives() {
		for _, ranks := range []int{1, 2, 3, 5} {
			if testing.Short() && ranks != 3 {
				continue
			}
			t.Run(fmt.Sprintf("%s on %d", name, ranks), func(t *testing.T) {
				o := small(name, ranks)
				o.Root = AllRoots
				var out, errs bytes.Buffer
				require.NoError(t, Run(context.Background(), o, &out, &errs))
				assert.Empty(t, errs.String())
				test, want := testNamed(name), 4*12 // sizes, types
				if test.reduces {
					want *= 6
				}
				if test.rooted {
					want *= ranks
				}
				all := rows(out.String())
				assert.Len(t, all, want)
				for _, fields := range all {
					require.Len(t, fields, 13)
					require.Equal(t, "0", fields[8], "%v", fields)
					require.Contains(t, []string{"0", "N/A"}, fields[12])
				}
				assert.Contains(t, out.String(), "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : ")
			})
		}
	}
}

// A result that is wrong in one element of one rank is counted, whatever the
// collective, in both halves, and fails the run.
func TestWrongResultsAreSeen(t *testing.T) {
	for _, name := range Collectives() {
		t.Run(name, func(t *testing.T) {
			o := small(name, 3)
			o.MinBytes, o.MaxBytes, o.Type, o.Op, o.Check = 4096, 4096, "float", "max", 2
			var out bytes.Buffer
			r, err := newRun(t.Context(), &o, &out, os.Stderr)
			require.NoError(t, err)
			defer r.close()
			r.tamper = func(rank int, recv []byte) {
				if rank == 0 && len(recv) > 0 {
					recv[4*17+3] ^= 1 // rank 0 receives in every collective, the root included
				}
			}
			require.ErrorIs(t, r.conclude(r.sweepAll(context.Background())), ErrFailed)
			want := "2"
			fields := rows(out.String())[0]
			assert.Equal(t, want, fields[8])
			total := 4
			if r.test.apart {
				total = 2
			} else {
				assert.Equal(t, want, fields[12])
			}
			assert.Contains(t, out.String(), fmt.Sprintf("# Out of bounds values : %d FAILED", total))
		})
	}
}

// An operation that does nothing at all must not pass: every element it should
// have written is wrong.
func TestNothingDoneIsWrongEverywhere(t *testing.T) {
	for _, test := range tests {
		for _, inPlace := range []bool{false, true} {
			if inPlace && test.apart {
				continue
			}
			o := small(test.name, 3)
			j := o.job(&test, 4096, dtype.Float32, reduce.Sum, 1, o.Ranks(), 1)
			j.inPlace = inPlace
			mem := make([]memory, 3)
			expected := 0
			for rank := range mem {
				mem[rank] = memory{make([]byte, 8192), make([]byte, 8192)}
				j.fill(mem[rank], rank, 5)
				for _, p := range j.expected(rank) {
					own := inPlace && (p.rank == rank) // its own block is where it belongs already
					if !own {
						expected += p.bytes / 4
					}
				}
			}
			got := j.wrong(mem, 0, 5)
			if test.reduces && inPlace { // some results equal an input
				assert.Greater(t, got, expected/2, test.name)
				continue
			}
			assert.Equal(t, expected, got, "%s in place %v", test.name, inPlace)
			assert.NotZero(t, expected)
		}
	}
}

// All flags that change how operations are issued and timed, at once and apart.
func TestModes(t *testing.T) {
	for _, args := range []string{
		"-m 3", "-z 1", "-z 2", "-z 3", "-z 1 -m 2", "-C 1", "-I 1 -K 1", "-S 1", "-a 0", "-a 2", "-a 3", "-M 1",
		"-u 1", "-u 3 -d half", "-c 0", "-c 3", "-N 2", "-p 1", "-T 60", "-t 2 -g 2", "-b 0 -f 1 -i 700",
		"--algo tree --proto ll128 --channels 2 --ranks-per-node 1", "--wait block", "--wait yield", "--wait spin",
	} {
		t.Run(args, func(t *testing.T) {
			o, err := parse(strings.Fields("-g 3 -b 8 -e 3000 -f 5 -n 3 " + args)...)
			require.NoError(t, err)
			for _, name := range []string{"all_reduce", "sendrecv"} {
				o.Collective = name
				var out, errs bytes.Buffer
				require.NoError(t, Run(context.Background(), o, &out, &errs))
				for _, fields := range rows(out.String()) {
					wrong := "0"
					if o.Check == 0 {
						wrong = "N/A"
					}
					require.Equal(t, wrong, fields[8])
				}
				assert.Equal(t, o.PerIter != 0, strings.Contains(out.String(), "i_cv%"))
				assert.Equal(t, o.CPUTime != 0, strings.Contains(out.String(), "cputime"))
				assert.Equal(t, o.CPUTime != 0, strings.Contains(out.String(), "# Processor time by role"))
				assert.Equal(t, o.Memory != 0, strings.Contains(out.String(), "# Memory usage         : Initialization "))
			}
		})
	}
}

func TestPreamble(t *testing.T) {
	o := small("broadcast", 2)
	o.Threads, o.Type, o.Version, o.Blocking = 2, "float", "v1.2.3", 1
	var out bytes.Buffer
	require.NoError(t, Run(context.Background(), o, &out, os.Stderr))
	lines := strings.Split(out.String(), "\n")
	assert.Equal(t, []string{
		"# gollective version v1.2.3",
		"# Collective test starting: broadcast_perf",
		"# nThread 2 nGpus 2 minBytes 4 maxBytes 5000 step: 7(factor) warmup iters: 1 iters: 2 agg iters: 1 validation: 1 graph: 0 unalign: 0",
		"# Blocking Enabled: wait for completion and barrier after each collective ",
		"#",
		"# Using devices",
	}, lines[:6])
	assert.Regexp(t, `^#  Rank  3 Group  0 Pid +\d+ on +\S+ device  3 \[0000:01:01\] .+$`, lines[9])
	assert.Regexp(t, `\n# Algorithm by size    : 4 B .*\n# Out of bounds`, out.String())
}

func TestForcedChoiceThatACollectiveLacksIsNoted(t *testing.T) {
	o := small("alltoall", 2)
	o.Type, o.Algorithm, o.Protocol, o.MinBytes, o.MaxBytes = "float", plan.Tree, plan.LL128, 1024, 2048
	var out, errs bytes.Buffer
	require.NoError(t, Run(context.Background(), o, &out, &errs))
	assert.Equal(t, "gollective perf: note: alltoall has no algorithm tree here; it takes p2p\n"+
		"gollective perf: note: alltoall has no protocol ll128 here; it takes ll\n", errs.String())
}

func TestChoicesAreTold(t *testing.T) {
	var c choices
	add := func(size int, a plan.Algorithm, channels int) {
		c.add(&job{layout: layout{send: size}, typ: dtype.Int8}, plan.Choice{Algorithm: a, Protocol: plan.LL, Channels: channels})
	}
	for range 2 { // the second series says nothing new
		add(8, plan.Tree, 1)
		add(1024, plan.Tree, 1)
		add(3<<19, plan.Ring, 2)
	}
	add(16, plan.Ring, 1)
	assert.Equal(t, []string{"8 B to 1 KiB tree/ll, 1536 KiB ring/ll on 2 channels", "16 B ring/ll"}, c.lines())
}

func TestJSONOfARun(t *testing.T) {
	o := small("all_reduce", 2)
	o.Type, o.Op, o.PerIter, o.Iters = "float", "sum", 1, 4
	o.JSON = filepath.Join(t.TempDir(), "r.json")
	var out bytes.Buffer
	require.NoError(t, Run(context.Background(), o, &out, os.Stderr))
	assert.Contains(t, out.String(), "# Writing JSON output to "+o.JSON+"\n")
	raw, err := os.ReadFile(o.JSON)
	require.NoError(t, err)
	var doc struct {
		Results []struct {
			Size       int
			OutOfPlace struct {
				Nwrong float64
				BusBW  float64 `json:"bus_bw"`
			} `json:"out_of_place"`
			Iter struct {
				Times []float64 `json:"times_us"`
			} `json:"in_place_per_iter"`
		}
		Bandwidth struct{ Bandwidth float64 } `json:"average_bus_bandwidth"`
		Config    struct{ Devices []struct{ Rank int } }
	}
	require.NoError(t, json.Unmarshal(raw, &doc))
	require.Len(t, doc.Results, 4)
	assert.Equal(t, 4, doc.Results[0].Size)
	assert.Len(t, doc.Results[0].Iter.Times, 4)
	assert.Len(t, doc.Config.Devices, 2)

	o.JSON = filepath.Join(t.TempDir(), "no", "such")
	var errs bytes.Buffer
	out.Reset()
	require.NoError(t, Run(context.Background(), o, &out, &errs))
	assert.Contains(t, out.String(), "# skipping json output; ")
	assert.Contains(t, errs.String(), "no JSON report")
}

func TestMinimumBandwidthFailsTheRun(t *testing.T) {
	t.Setenv(minimumBandwidthVar, "1e9")
	o := small("all_gather", 2)
	o.Type = "float"
	var out bytes.Buffer
	require.ErrorIs(t, Run(context.Background(), o, &out, os.Stderr), ErrFailed)
	assert.Regexp(t, `# Avg bus bandwidth    : \S+ FAILED\n`, out.String())
}

// A rank that stays away ends the others' calls after -T.
func TestTimeout(t *testing.T) {
	o := small("all_reduce", 3)
	o.TimeoutSeconds = 1
	r, err := newRun(t.Context(), &o, &bytes.Buffer{}, os.Stderr)
	require.NoError(t, err)
	defer r.close()
	err = r.onRanks(context.Background(), func(ctx context.Context, rank int) error {
		if rank == 1 {
			return nil
		}
		return r.comm(rank).Do(ctx, collective.Call{Kind: plan.Barrier})
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "test timeout (1s)")
}

// A rank that gives up must not leave the others waiting.
func TestFailureOfOneRankEndsTheRun(t *testing.T) {
	o := small("all_reduce", 3)
	r, err := newRun(t.Context(), &o, &bytes.Buffer{}, os.Stderr)
	require.NoError(t, err)
	defer r.close()
	mine := errors.New("mine")
	err = r.onRanks(context.Background(), func(ctx context.Context, rank int) error {
		if rank == 0 {
			return mine
		}
		return r.comm(rank).Do(ctx, collective.Call{Kind: plan.Barrier})
	})
	require.ErrorIs(t, err, mine)
}

// cancelling cancels when the n-th row is printed.
type cancelling struct {
	bytes.Buffer
	rows   int
	cancel func()
}

func (w *cancelling) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte(" ")) {
		if w.rows--; w.rows == 0 {
			w.cancel()
		}
	}
	return w.Buffer.Write(p)
}

func TestInterrupt(t *testing.T) {
	for _, tc := range []struct {
		name   string
		cycles int
		err    error
	}{
		{"endless runs end well", 0, nil},
		{"others are cut short", 1000, context.Canceled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			o := small("all_reduce", 3)
			o.Type, o.Op, o.Cycles = "float", "sum", tc.cycles
			out := &cancelling{rows: 6, cancel: cancel}
			require.ErrorIs(t, Run(ctx, o, out, os.Stderr), tc.err)
			assert.Len(t, rows(out.String()), 6)
			assert.Contains(t, out.String(), "# Out of bounds values : 0 OK")
		})
	}
}

func TestBarOnlyOnATerminal(t *testing.T) {
	assert.Nil(t, newBar(&bytes.Buffer{}, 5))
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer file.Close()
	assert.Nil(t, newBar(file, 5))

	var b bytes.Buffer
	bar := newBarOn(&b, 3)
	bar.add()
	bar.clear()
	assert.Empty(t, b.String(), "not yet worth a bar")
	bar.start = bar.start.Add(-2 * patience)
	bar.add()
	assert.Contains(t, b.String(), "2/3")
	bar.finish()
}
