package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// command runs the tool in this process.
func command(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(context.Background(), append([]string{"gollective"}, args...), &o, &e)
	return status, o.String(), e.String()
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                                "accepted: help, load, perf, plan, run, tree, tune, version",
		"measure":                         "accepted: help, load, perf, plan, run, tree, tune, version",
		"--fast":                          "accepted: -h",
		"perf hypercube":                  "accepted: all_reduce, all_gather",
		"perf all_reduce all_gather":      "accepted: one collective",
		"perf all_reduce --fast":          "accepted: -t -g -b -e",
		"perf all_reduce -n":              "accepted: -t -g -b -e",
		"perf all_reduce -n 0":            "accepted: an integer from 1",
		"perf all_reduce -G 1":            "accepted: 0",
		"perf all_reduce -b 2 -e 1":       "accepted: a first size",
		"perf all_reduce --transport udp": "accepted: auto, inproc, shm, tcp",
		"plan":                            "accepted: one collective",
		"plan hypercube":                  "accepted: all_reduce",
		"plan all_reduce -n 0":            "accepted: 1 to",
		"plan all_reduce -n two":          "accepted: -n --rank -b",
		"plan all_reduce -n 2 --rank 2":   "accepted: 0 to 1",
		"plan all_reduce -o all":          "accepted: a single",
		"plan broadcast -r 4":             "accepted: 0 to 3",
		"plan all_reduce -b 17G":          "accepted: up to 16G",
		"tree":                            "accepted: the number",
		"tree 0":                          "accepted: 1 to",
		"tree 1 2":                        "accepted: the number",
		"version now":                     "accepted: no arguments",
		"load all_reduce":                 "accepted: no arguments",
		"load --fast":                     "accepted: -n --policies --proxies --channels",
		"load --policies lazy":            "accepted: some of spin,yield,adaptive,block",
		"load -n 1":                       "accepted: an integer from 2",
		"tune alltoall":                   "accepted: all_reduce, all_gather",
		"tune -g 1":                       "accepted: 2 to",
		"tune -n two":                     "accepted: -g -n --transport -b -e",
		"tune -g 0 -n 0":                  "accepted: -g or -n",
		"tune --transport udp":            "accepted: shm, tcp",
		"tune -b 1":                       "accepted: 4 to",
		"tune -f 1":                       "accepted: 2 and more",
		"tune -b 2K -e 1K":                "accepted: a first size",
		"tune --rounds 0":                 "accepted: 1 to",
		"tune --budget 0s":                "accepted: a time",
		"tune --channels 65":              "accepted: 0 to 64",
		"load -o load.pdf":                "accepted: names that end in .svg or .png",
	} {
		t.Run(args, func(t *testing.T) {
			status, out, errs := command(strings.Fields(args)...)
			assert.Equal(t, usage, status)
			assert.Empty(t, out)
			assert.Contains(t, errs, want)
			assert.Equal(t, 1, strings.Count(errs, "\n"), "one line: %q", errs)
			assert.True(t, strings.HasPrefix(errs, "gollective"), errs)
		})
	}
}

func TestHelpIsNoError(t *testing.T) {
	for _, args := range []string{"-h", "help", "perf -h", "load -h", "plan --help", "tune -h", "help tree"} {
		status, out, _ := command(strings.Fields(args)...)
		assert.Equal(t, good, status, args)
		assert.Contains(t, out, "Usage:", args)
	}
}

func TestPlan(t *testing.T) {
	status, out, errs := command("plan", "all_reduce", "-n", "3", "-b", "1K", "--algo", "ring", "--proto", "simple")
	require.Equal(t, good, status, errs)
	for _, rank := range []string{"rank 0 of 3", "rank 1 of 3", "rank 2 of 3"} {
		assert.Contains(t, out, rank)
	}
	assert.Contains(t, out, "count 256, float, sum")
	assert.Contains(t, out, "ring, simple")
	assert.Contains(t, out, "recvReduceCopySend")

	status, one, _ := command("plan", "all_reduce", "-n", "3", "-b", "1K", "--algo", "ring", "--proto", "simple", "--rank", "1")
	require.Equal(t, good, status)
	assert.Contains(t, out, one)
	assert.NotContains(t, one, "rank 0 of 3")

	status, out, _ = command("plan", "all_reduce", "-n", "4", "-b", "64M", "--ranks-per-node", "1", "--algo", "tree", "--channels", "2", "-d", "half", "-o", "max")
	require.Equal(t, good, status)
	assert.Contains(t, out, "half, max")
	assert.Contains(t, out, "channel 1")

	status, out, _ = command("plan", "sendrecv", "-n", "3", "-b", "64", "--rank", "0")
	require.Equal(t, good, status)
	assert.Contains(t, out, "send to 1")
	assert.Contains(t, out, "recv from 2")
}

func TestTypedChoiceWinsOverTheEnvironment(t *testing.T) {
	t.Setenv("GOLLECTIVE_ALGO", "tree")
	_, out, _ := command("plan", "all_reduce", "-n", "2", "-b", "1M")
	assert.Contains(t, out, "tree, ")
	_, out, _ = command("plan", "all_reduce", "-n", "2", "-b", "1M", "--algo", "ring")
	assert.Contains(t, out, "ring, ")
}

func TestTree(t *testing.T) {
	status, out, _ := command("tree", "3")
	require.Equal(t, good, status)
	assert.Equal(t, "nranks,rank,up0,down0a,down0b,up1,down1a,down1b\n"+
		"3,0,-1,-1,2,1,2,-1\n3,1,2,-1,-1,-1,-1,0\n3,2,0,1,-1,0,-1,-1\n", out)
}

func TestPerfKeepsNCCLTestsDefaultsForANamedCollective(t *testing.T) {
	status, out, errs := command("perf", "all_reduce", "-e", "32M", "-n", "1", "-w", "0", "-c", "0")
	require.Equal(t, good, status, errs)
	assert.Contains(t, out, "# nThread 1 nGpus 1 minBytes 33554432 maxBytes 33554432 step: 1048576(bytes) ")
}

// build compiles the command once.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "gollective")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

// The binary as users run it: output, exit status, streams.
func TestBinary(t *testing.T) {
	binary := build(t)
	execute := func(env []string, args ...string) (status int, out, errs string) {
		cmd := exec.Command(binary, args...)
		cmd.Env = append(os.Environ(), env...)
		var o, e bytes.Buffer
		cmd.Stdout, cmd.Stderr = &o, &e
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			require.NoError(t, err)
		}
		return cmd.ProcessState.ExitCode(), o.String(), e.String()
	}

	t.Run("default run", func(t *testing.T) {
		status, out, errs := execute(nil, "perf", "-n", "2", "-e", "64K")
		require.Equal(t, good, status, errs)
		assert.Empty(t, errs, "no progress bar where there is no terminal")
		assert.Contains(t, out, "# nThread 1 nGpus 4 minBytes 8 maxBytes 65536 step: 2(factor) ")
		row := regexp.MustCompile(`(?m)^ +\d+  +\d+  +float  +sum  +-1(  +\d+\.?\d*){3}  +0(  +\d+\.?\d*){3}  +0$`)
		assert.Len(t, row.FindAllString(out, -1), 14)
		assert.Regexp(t, `(?m)^# Algorithm by size    : 8 B`, out)
		assert.Regexp(t, `(?m)^# Out of bounds values : 0 OK$`, out)
		assert.Regexp(t, `(?m)^# Avg bus bandwidth    : \d+\.?[\de-]* $`, out)
		assert.True(t, strings.HasSuffix(out, "#\n# Collective test concluded: all_reduce_perf\n#\n\n"), out)
	})
	t.Run("too slow", func(t *testing.T) {
		status, out, errs := execute([]string{"GOLLECTIVE_TESTS_MIN_BW=1e9"}, "perf", "-n", "1", "-e", "8")
		assert.Equal(t, failed, status)
		assert.Contains(t, out, "FAILED")
		assert.Equal(t, 1, strings.Count(errs, "\n"), errs)
	})
	t.Run("bad variable", func(t *testing.T) {
		status, _, errs := execute([]string{"GOLLECTIVE_TESTS_MIN_BW=much"}, "perf")
		assert.Equal(t, usage, status)
		assert.Contains(t, errs, "accepted: a positive number")
	})
	t.Run("usage", func(t *testing.T) {
		status, out, errs := execute(nil, "perf", "all_reduce", "-d", "quad")
		assert.Equal(t, usage, status)
		assert.Empty(t, out)
		assert.Contains(t, errs, "accepted: int8, uint8")
	})
	t.Run("version", func(t *testing.T) {
		status, out, _ := execute(nil, "version")
		assert.Equal(t, good, status)
		assert.Regexp(t, `^gollective \S+ go1\.\S+ \w+/\w+\n$`, out)
	})
}
