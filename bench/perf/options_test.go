package perf

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/spin"
)

func parse(args ...string) (Options, error) {
	o := DefaultOptions()
	o.Collective = "all_reduce"
	fs := pflag.NewFlagSet("perf", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	return o, o.Validate()
}

func TestDefaultsAreNCCLTests(t *testing.T) {
	o, err := parse()
	require.NoError(t, err)
	want := DefaultOptions()
	want.Collective = "all_reduce"
	assert.Equal(t, want, o)
	assert.Equal(t, 1, o.Ranks())
	assert.Equal(t, 32<<20, o.MinBytes)
	assert.Equal(t, o.MinBytes, o.MaxBytes)
	assert.Equal(t, 1<<20, o.StepBytes)
}

// All of nccl-tests' spellings: short, long, with and without "=" and blank.
func TestFlags(t *testing.T) {
	o, err := parse(strings.Fields("-t2 -g 3 -b 1K --maxbytes=1.5M -i 16 -f 3 --iters 0x7 -m 2 -w 0 -N 4 -p 1 -c 5 -o avg -d half -r -1" +
		" -z 3 -T 60 -C 1 -S 1 -J out.json -a 3 -M 1 -u 3 -I 1 -K 2 -y 0 -G 0 -R 0 -D 0 -V 16" +
		" --algo tree --proto LL128 --channels 2 --wait block --ranks-per-node 2 --transport inproc")...)
	require.NoError(t, err)
	assert.Equal(t, Options{
		Collective: "all_reduce", Threads: 2, Devices: 3, MinBytes: 1024, MaxBytes: 3 << 19, StepBytes: 16, StepFactor: 3,
		Iters: 7, Aggregate: 2, Warmup: 0, Cycles: 4, ParallelInit: 1, Check: 5, Op: "avg", Type: "half", Root: AllRoots,
		Blocking: 3, TimeoutSeconds: 60, CPUTime: 1, Timestamps: 1, JSON: "out.json", Average: 3, Memory: 1, Unalign: 3,
		PerIter: 1, PerIterSkip: 2, Algorithm: plan.Tree, Protocol: plan.LL128, Channels: 2, Wait: spin.Block,
		RanksPerNode: 2, Transport: "inproc", Proxy: "auto",
	}, o)
	assert.Equal(t, 6, o.Ranks())
}

func TestUsageErrorsSayWhatIsAccepted(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"-g 0", "1 to"},
		{"-n 0", "1 to"},
		{"-n x", "an integer"},
		{"-i 0x10", "a number of bytes"},
		{"-b 8X", "K, M or G"},
		{"-b 64M", "a first size up to the last"},
		{"-b 0 -f 2", "-b from 1 on"},
		{"-i 0", "-i from 1 on"},
		{"-o median", "sum, prod, max, min, avg, mulsum, all"},
		{"-d float16", "half"},
		{"-r 1", "0 to 0, or all"},
		{"-r -2", "-1 or all"},
		{"-I 1 -n 5 -K 5", "0 to 4"},
		{"-a 4", "0 to 3"},
		{"-G 1", "no CUDA graphs"},
		{"-y 1", "accepted: 0"},
		{"-R 2", "accepted: 0"},
		{"-x 0", "accepted: unset"},
		{"-D 1", "accepted: 0"},
		{"-V 8", "accepted: 16"},
		{"--algo nvls", "auto, ring, tree"},
		{"--proto fast", "auto, simple, ll, ll128"},
		{"--wait sleep", "spin, yield, adaptive, block"},
		{"--transport carrier-pigeon", "auto, inproc, shm"},
		{"-e 1048576G", "accepted: up to"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			_, err := parse(strings.Fields(tc.args)...)
			require.ErrorContains(t, err, "accepted: ")
			assert.ErrorContains(t, err, tc.want)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestUnknownCollective(t *testing.T) {
	o := DefaultOptions()
	o.Collective = "hypercube"
	var usage *UsageError
	require.ErrorAs(t, o.Validate(), &usage)
	assert.Contains(t, usage.Error(), "all_reduce, all_gather, reduce_scatter")
}

func TestAllMeansAll(t *testing.T) {
	o := DefaultOptions()
	o.Op, o.Type = "all", "all"
	assert.Len(t, o.ops(), 6)
	assert.Len(t, o.types(), 12)
	o.Op, o.Type = "mulsum", "f8e4m3"
	assert.Equal(t, "mulsum", o.ops()[0].String())
	assert.Equal(t, "f8e4m3", o.types()[0].String())
}

func TestEnvironment(t *testing.T) {
	env := func(value string) func(string) (string, bool) {
		return func(string) (string, bool) { return value, true }
	}
	unset := func(string) (string, bool) { return "", false }
	x, err := minimumBandwidth(unset)
	require.NoError(t, err)
	assert.Zero(t, x)
	x, err = minimumBandwidth(env("2.5"))
	require.NoError(t, err)
	assert.Equal(t, 2.5, x)
	for _, bad := range []string{"x", "-1", "0", "nan"} {
		_, err = minimumBandwidth(env(bad))
		assert.ErrorContains(t, err, "accepted", bad)
	}
	x, err = alltoallvSpread(unset)
	require.NoError(t, err)
	assert.Equal(t, 1.0, x)
	x, err = alltoallvSpread(env("0.25"))
	require.NoError(t, err)
	assert.Equal(t, 0.25, x)
	for _, bad := range []string{"x", "-1", "1.5", "nan"} {
		_, err = alltoallvSpread(env(bad))
		assert.ErrorContains(t, err, "accepted", bad)
	}
}
