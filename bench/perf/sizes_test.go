package perf

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int{
		"0": 0, "8": 8, "1K": 1024, "1k": 1024, "32M": 32 << 20, "2g": 2 << 30, "1.5M": 3 << 19,
		"0.5K": 512, "9007199254740993": 1<<53 + 1, "1e3": 1000,
	} {
		got, err := ParseSize(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "K", "-1", "-0.5M", "8B", "0x10", "1T", "inf", "nan", "1_000", "9e18G", "1 K"} {
		_, err := ParseSize(text)
		assert.Error(t, err, text)
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"8", "1.5M", "2G", "1e3K", "9223372036854775807", "0x1p3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseSize(text); err == nil && n < 0 {
			t.Errorf("ParseSize(%q) = %d", text, n)
		}
	})
}

func TestSweep(t *testing.T) {
	for _, tc := range []struct {
		name                      string
		first, last, step, factor int
		want                      []int
	}{
		{"one size", 32, 32, 1, 0, []int{32}},
		{"doubling", 8, 64, 1, 2, []int{8, 16, 32, 64}},
		{"last size not met", 8, 100, 1, 3, []int{8, 24, 72}},
		{"additive", 1, 10, 4, 1, []int{1, 5, 9}},
		{"additive from zero", 0, 8, 4, 0, []int{0, 4, 8}},
		{"no overflow when multiplied", 1 << 60, 1<<62 + 1, 1, 1 << 30, []int{1 << 60}},
		{"no overflow when added", 1<<62 + 1<<61, 1<<63 - 1, 1 << 62, 0, []int{1<<62 + 1<<61}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assert.Equal(t, tc.want, slices.Collect(sweep(tc.first, tc.last, tc.step, tc.factor)))
		})
	}
}
