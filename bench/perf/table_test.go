package perf

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Every width and cut-off of the table, seen whole.
func TestTableLayout(t *testing.T) {
	var b strings.Builder
	table := &table{w: &b}
	table.header()
	table.row(row{
		bytes: 8, count: 2, typ: "float", op: "sum", root: -1,
		apart: half{made: true, micros: 4.454, algbw: 0.004, busbw: 0.0031, checked: true},
		in:    half{made: true, micros: 12345.67, algbw: 123.456, busbw: 1234.56, checked: true, wrong: 17},
	})
	table.row(row{
		bytes: 137438953472, count: 34359738368, typ: "bfloat16", op: "mulsum", root: 12,
		apart: half{made: true, micros: 1234567.8, algbw: 99999.9, busbw: 1234567, checked: true, wrong: 123456},
		in:    half{},
	})
	table.footer(verdict{collective: "all_reduce", busbw: 10.41271, choices: []string{"8 B to 8 MiB ring/ll"}})
	assert.Equal(t, strings.Join([]string{
		"#",
		"#                                                              out-of-place                       in-place          ",
		"#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
		"#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
		"           8             2     float     sum      -1     4.45    0.00    0.00       0  12345.7  123.46  1234.6      17",
		"137438953472   34359738368  bfloat16  mulsum      12  1234568  100000   1e+06  123456      nan     nan     nan     N/A",
		"# Algorithm by size    : 8 B to 8 MiB ring/ll",
		"# Out of bounds values : 0 OK",
		"# Avg bus bandwidth    : 10.4127 ",
		"#",
		"# Collective test concluded: all_reduce_perf",
		"#",
		"",
		"",
	}, "\n"), b.String())
}

func TestTableWithEveryColumn(t *testing.T) {
	var b strings.Builder
	table := &table{w: &b, cpuTime: true, timestamps: true, perIter: true}
	table.header()
	h := half{made: true, micros: 2, perIter: []float64{1, 3}}
	table.row(row{bytes: 4, count: 4, typ: "int8", op: "none", root: 0, apart: h, in: half{},
		when: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)})
	table.footer(verdict{collective: "broadcast", wrong: 3, busbw: 5, minimum: 6, failure: errors.New("a\nb"),
		memory: []memoryUse{{"Initialization", 1536}, {"User-Allocated", 64 << 20}, {"Collective", 100}}})
	assert.Equal(t, strings.Join([]string{
		"#",
		"#                                                                 out-of-place (+ per-iteration)                                in-place (+ per-iteration)",
		"#       size         count      type   redop    root  cputime   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%  cputime   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%           timestamp",
		"#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)     (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)   %Y-%m-%d %H:%M:%S",
		"           4             4      int8    none       0     2.00    0.00    0.00     N/A     1.00     3.00     3.00    50.00      nan     nan     nan     N/A      nan      nan      nan      nan  2026-01-02 03:04:05",
		"# Out of bounds values : 3 FAILED",
		"# Avg bus bandwidth    : 5 FAILED",
		"#",
		"# Collective test concluded: broadcast_perf",
		"# Memory usage         : Initialization 1.50 KB | User-Allocated 64.0 MB | Collective 100 B | Total  64.0 MB",
		"#",
		"# error: a; b",
		"",
	}, "\n"), b.String())
}

func TestFitted(t *testing.T) {
	for _, tc := range []struct {
		x     float64
		width int
		want  string
	}{
		{0, 6, "  0.00"}, {999.99, 6, "999.99"}, {999.996, 6, "1000.0"}, {9999.96, 6, " 10000"},
		{999999, 6, "999999"}, {999999.6, 6, " 1e+06"}, {9999.994, 7, "9999.99"}, {9999.999, 7, "10000.0"},
		{1e7, 7, "1.0e+07"}, {1.26e12, 7, "1.3e+12"}, {math.NaN(), 6, "   nan"}, {math.Inf(1), 6, "   inf"},
	} {
		assert.Equal(t, tc.want, fitted(tc.x, tc.width), "%v in %d", tc.x, tc.width)
	}
}

func TestCFloat(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 14.99661: "14.9966", 220.921: "220.921", 1234567: "1.23457e+06", 999999: "999999", 1e-5: "1e-05"} {
		assert.Equal(t, want, cFloat(x))
	}
	assert.Equal(t, "nan", cFloat(math.NaN()))
	assert.Equal(t, "-inf", cFloat(math.Inf(-1)))
}

func TestMinimumBandwidthAllowsATenth(t *testing.T) {
	assert.True(t, verdict{busbw: 1}.fastEnough())
	assert.True(t, verdict{busbw: 9, minimum: 10}.fastEnough())
	assert.False(t, verdict{busbw: 8.99, minimum: 10}.fastEnough())
}
