package perf

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	t.Setenv("GOLLECTIVE_TEST_PATH", "/a")
	t.Setenv("SOME_SECRET", "x")
	path := filepath.Join(t.TempDir(), "out.json")
	r, err := openReport(path)
	require.NoError(t, err)
	o := DefaultOptions()
	o.Args, o.Version, o.Blocking = []string{"gollective", "perf", "a/b\"\n", "tab\té rest"}, "v1.2.3", 2
	r.begin(&o, []jsonDevice{{Rank: 0, Host: "host", Hex: "0000:00:00", Info: "cpu"}})
	r.row(row{bytes: 8, count: 2, typ: "float", op: "sum", root: -1, iters: 20,
		apart: half{made: true, micros: 1.5, algbw: 2, busbw: math.NaN(), checked: true, wrong: 3, perIter: []float64{1, 2}, skipped: 4},
		in:    half{}})
	require.NoError(t, r.finish(verdict{wrong: 3, busbw: 1.25, minimum: 1, failure: errors.New("x\ny")}))

	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.NotContains(t, string(raw), "\n", "one line")
	assert.Contains(t, string(raw), `"args":["gollective","perf","a\/b\"\n","tab\t"]`)
	assert.Contains(t, string(raw), `GOLLECTIVE_TEST_PATH=\/a`)
	assert.NotContains(t, string(raw), "SECRET")
	assert.Contains(t, string(raw), `"out_of_place":{"time":1.500000,"alg_bw":2.000000,"bus_bw":"nan","nwrong":3.000000}`)
	assert.Contains(t, string(raw), `"in_place":null,"actual_iterations":20,"experiment_name":""`)
	assert.Contains(t, string(raw), `"out_of_place_per_iter":{"skipped_iterations":4,"min_us":1.000000,"max_us":2.000000,"avg_us":1.500000,"p50_us":2.000000,"p95_us":2.000000,"p99_us":2.000000,"stdev_us":0.500000,"cv_pct":33.333333,"times_us":[1.000000,2.000000]}`)
	assert.NotContains(t, string(raw), "in_place_per_iter\":null")
	assert.Contains(t, string(raw), `"root":"    -1"`)
	assert.Contains(t, string(raw), `"blocking_collectives":"true"`)
	assert.Contains(t, string(raw), `"out_of_bounds":{"count":3,"okay":"false"},"average_bus_bandwidth":{"bandwidth":1.250000,"okay":"true"},"errors":["x; y"],"end_time":`)

	var doc map[string]any
	require.NoError(t, json.Unmarshal(raw, &doc))
	assert.Equal(t, 3.0, doc["version"])
	assert.Equal(t, 10203.0, doc["nccl_version"])
	config := doc["config"].(map[string]any)
	assert.Equal(t, float64(1<<20), config["step_bytes"])
	assert.NotContains(t, config, "step_factor")
	assert.Regexp(t, `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$`, doc["start_time"])
}

func TestReportOfCPUTimeWithoutMinimum(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.json")
	r, err := openReport(path)
	require.NoError(t, err)
	o := DefaultOptions()
	o.CPUTime, o.StepFactor = 1, 2
	r.begin(&o, nil)
	r.row(row{apart: half{made: true, micros: 1}})
	require.NoError(t, r.finish(verdict{}))
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Contains(t, string(raw), `{"cpu_time":1.000000,"alg_bw":0.000000,"bus_bw":0.000000,"nwrong":null}`)
	assert.Contains(t, string(raw), `"okay":"unchecked"},"errors":[]`)
	assert.Contains(t, string(raw), `"step_factor":2,"warmup_iters"`)
}

func TestReportNeverOverwrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	for _, want := range []string{path, path + ".0", path + ".1"} {
		r, err := openReport(path)
		require.NoError(t, err)
		assert.Equal(t, want, r.file.Name())
		require.NoError(t, r.file.Close())
	}
	_, err := openReport(filepath.Join(path, "no", "directory"))
	assert.Error(t, err)
}

func TestVersionCode(t *testing.T) {
	for version, want := range map[string]int{"v0.1.0": 100, "v2.30.7": 23007, "v1.2.3-pre+meta": 10203, "(devel)": 0, "": 0} {
		assert.Equal(t, want, versionCode(version), version)
	}
}

func FuzzTextIsValidJSON(f *testing.F) {
	for _, s := range []string{"", "a/b", "\"\\", "\x00", "é", "\n\t\r"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		raw, err := text(s).MarshalJSON()
		require.NoError(t, err)
		var back string
		require.NoError(t, json.Unmarshal(raw, &back))
		require.True(t, strings.HasPrefix(s, back))
	})
}
