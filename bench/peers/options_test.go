package main

import (
	"bytes"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/affinity"
)

func TestDefaultsAndQuick(t *testing.T) {
	o, err := parseOptions(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{2, 4}, o.ranks)
	require.Equal(t, []string{overShm, overTCP}, o.transports)
	require.Equal(t, defaultSizes, o.sizes)
	require.Equal(t, 5, o.rounds)
	require.Equal(t, 0.08, o.jobSeconds(), "the time of a size is that of both kinds of buffers")
	require.Equal(t, affinity.Own().List(), o.cores)

	o, err = parseOptions([]string{"-quick", "-rounds", "7"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{4, 64 << 10, 4 << 20}, o.sizes)
	require.Equal(t, 7, o.rounds, "what is given counts")
	require.Equal(t, 0.05, o.seconds)
}

func TestFlagsSelect(t *testing.T) {
	o, err := parseOptions([]string{
		"-peers", "gloo,openmpi,copy", "-transports", "tcp", "-ranks", "3", "-sizes", "1M,4,4,64k", "-buffers", "rotating",
		"-pool", "1M", "-J", "x.json", "-md", "x.md", "-statistic", "least",
	}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{4, 64 << 10, 1 << 20}, o.sizes, "in order, each once")
	require.Equal(t, 1<<20, o.pool)
	require.Equal(t, "x.json", o.json)
	require.Equal(t, "-buffers rotating -peers gloo,openmpi,copy -pool 1M -ranks 3 -sizes 1M,4,4,64k -transports tcp", strings.Join(o.args, " "),
		"what the report says how to repeat it: no more than decides what is measured")
	require.Equal(t, "x.md", o.markdown)
	var selected []string
	for i := range contenders {
		if o.selects(&contenders[i]) {
			selected = append(selected, contenders[i].id)
		}
	}
	require.Equal(t, []string{"openmpi", "gloo-default", "gloo-sync", "gloo-poll", "copy"}, selected)
}

func TestMistakesAreTold(t *testing.T) {
	for _, tc := range []struct {
		args []string
		text string
	}{
		{[]string{"-peers", "openmpi,oneccl"}, `"oneccl" is none of`},
		{[]string{"-transports", "udp"}, `"udp" is none of`},
		{[]string{"-buffers", "none"}, `"none" is none of`},
		{[]string{"-statistic", "mean"}, `"mean" is none of`},
		{[]string{"-ranks", "1"}, `"1" is no number`},
		{[]string{"-ranks", "2,"}, `"" is no number`},
		{[]string{"-sizes", "6"}, `"6" is no multiple`},
		{[]string{"-sizes", "0"}, `"0" is no multiple`},
		{[]string{"-sizes", "99999G"}, `"99999G" is no multiple`},
		{[]string{"-pool", "x"}, `"x" is no size`},
		{[]string{"-cores", "a"}, "-cores"},
		{[]string{"-cores", "65535"}, "may not use processor 65535"},
		{[]string{"-rounds", "0"}, "-rounds"},
		{[]string{"-seconds", "0"}, "-seconds"},
		{[]string{"-seconds", "NaN"}, "-seconds"},
		{[]string{"openmpi"}, `"openmpi" is no flag`},
		{[]string{"-unknown"}, "not defined"},
	} {
		var errs bytes.Buffer
		_, err := parseOptions(tc.args, &errs)
		require.Error(t, err, tc.args)
		require.Contains(t, errs.String(), tc.text)
	}
	_, err := parseOptions([]string{"-h"}, io.Discard)
	require.ErrorIs(t, err, flag.ErrHelp)
}

func TestSizesAreReadAndWritten(t *testing.T) {
	for text, bytes := range map[string]int{"4": 4, "64K": 64 << 10, "1M": 1 << 20, "2G": 2 << 30, "1025": 1025} {
		n, err := parseSize(text)
		require.NoError(t, err)
		require.Equal(t, bytes, n)
		require.Equal(t, text, formatSize(bytes))
	}
	for _, text := range []string{"", "K", "-1", "1.5M", "1KB", "18446744073709551616"} {
		_, err := parseSize(text)
		require.Error(t, err, text)
	}
}

// The buffers of all ranks, inputs and outputs, must not fit into a cache.
func TestRotatingBuffersFillThePool(t *testing.T) {
	o := options{pool: 64 << 20, buffers: []string{fixed, rotating}, sizes: []int{4, 16 << 10, 1 << 20, 5 << 20, 64 << 20}}
	for _, ranks := range []int{2, 3, 4} {
		for _, bytes := range o.sizes {
			require.Equal(t, 1, o.buffersOf(fixed, bytes, ranks))
			n := o.buffersOf(rotating, bytes, ranks)
			require.True(t, 2*n*bytes*ranks >= o.pool || n == mostBuffers, "%d bytes, %d ranks: %d", bytes, ranks, n)
			require.Less(t, 2*(n-1)*bytes*ranks, o.pool, "no more than needed")
		}
	}
	require.Equal(t, []job{{4, 1}, {4, 1024}, {16 << 10, 1}, {16 << 10, 1024}, {1 << 20, 1}, {1 << 20, 16}, {5 << 20, 1}, {5 << 20, 4}, {64 << 20, 1}}, o.jobs(2),
		"one job serves both kinds where they are the same")
}
