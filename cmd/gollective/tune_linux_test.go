package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
)

// tune as users run it: what it writes is what goroutines and processes choose
// afterwards. What the environment forces has no part in it.
func TestTune(t *testing.T) {
	binary, dir := build(t), t.TempDir()
	execute := func(variable string, args ...string) (status int, out, errs string) {
		cmd := exec.Command(binary, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), variable)
		var o, e bytes.Buffer
		cmd.Stdout, cmd.Stderr = &o, &e
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			require.NoError(t, err)
		}
		return cmd.ProcessState.ExitCode(), o.String(), e.String()
	}
	sizes := []int{64, 1024, 16384}
	status, out, errs := execute("GOLLECTIVE_ALGO=ring", "tune", "all_reduce", "broadcast", "-g", "2", "-n", "2", "--transport", "shm,tcp",
		"-b", "64", "-e", "16K", "-f", "16", "--rounds", "2", "--budget", "1m", "-o", "tuner.csv", "--points", "points")
	require.Equal(t, good, status, "%s%s", out, errs)
	assert.Empty(t, errs, "no progress where there is no terminal")
	for _, title := range []string{"all_reduce, 2 goroutine ranks", "broadcast, 2 processes over shm", "all_reduce, 2 processes over tcp"} {
		assert.Contains(t, out, "# "+title+"\n")
	}
	assert.Contains(t, out, "oneshot/", "the environment's ring is not forced")
	file, err := os.Open(filepath.Join(dir, "tuner.csv"))
	require.NoError(t, err)
	defer file.Close()
	tuning, err := plan.ParseTuning("tuner.csv", file)
	require.NoError(t, err)
	for _, transport := range []string{"inproc", "shm", "tcp"} {
		for name, kind := range map[string]plan.Kind{"all_reduce": plan.AllReduce, "broadcast": plan.Broadcast} {
			for _, size := range sizes {
				want := ""
				for _, r := range tuning.Rules {
					if want == "" && r.Kind == kind && r.Transport == transport && r.MinBytes <= size && size <= r.MaxBytes {
						want = fmt.Sprintf("%v/%v", r.Choice.Algorithm, r.Choice.Protocol)
					}
				}
				require.NotEmpty(t, want, "%s %s %d", transport, name, size)
				perf := []string{"perf", name, "-g", "2", "-n", "1", "-b", fmt.Sprint(size), "-e", fmt.Sprint(size)}
				if transport != "inproc" {
					perf[3] = "1"
					perf = append([]string{"run", "-n", "2", "--transport", transport, "--", binary}, perf...)
				}
				status, out, errs := execute("GOLLECTIVE_TUNER_FILE=tuner.csv", perf...)
				require.Equal(t, good, status, "%s%s", out, errs)
				_, chosen, _ := strings.Cut(out, "# Algorithm by size    : ")
				chosen, _, _ = strings.Cut(chosen, "\n")
				assert.Contains(t, chosen, " "+want, "%s %s %d", transport, name, size)
			}
		}
	}

	status, out, errs = execute("GOLLECTIVE_SIZE=", "tune", "--rank", "{")
	assert.Equal(t, failed, status)
	assert.Empty(t, out)
	assert.Equal(t, 1, strings.Count(errs, "\n"), errs)
}
