package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResultsOfProgramsAreRead(t *testing.T) {
	r, err := parseResult("result bytes=65536 buffers=256 line=ideal variant=two-shot operations=120 cpu=1.5e-05 wrong=0 seconds=1e-05,2.5e-05")
	require.NoError(t, err)
	require.Equal(t, result{
		Job: job{65536, 256}, Variant: "two-shot", Operations: 120, CPU: 1.5e-5, Seconds: []float64{1e-5, 2.5e-5},
	}, r)
}

func TestLinesThatAreNoResultsAreRefused(t *testing.T) {
	const good = "result bytes=4 buffers=1 operations=1 cpu=0 wrong=0 seconds=1"
	_, err := parseResult(good)
	require.NoError(t, err)
	for name, line := range map[string]string{
		"empty":             "",
		"other words":       "results bytes=4",
		"a key is missing":  strings.Replace(good, "wrong=0 ", "", 1),
		"a key comes twice": good + " bytes=8",
		"no value":          good + " note",
		"negative":          strings.Replace(good, "bytes=4", "bytes=-4", 1),
		"not a number":      strings.Replace(good, "cpu=0", "cpu=NaN", 1),
		"infinite":          strings.Replace(good, "seconds=1", "seconds=1,inf", 1),
		"an empty time":     strings.Replace(good, "seconds=1", "seconds=1,,1", 1),
		"no times":          strings.Replace(good, "seconds=1", "seconds=", 1),
		"too large":         strings.Replace(good, "bytes=4", "bytes=99999999999999999999", 1),
	} {
		_, err := parseResult(line)
		require.ErrorIs(t, err, errNoResult, name)
	}
}

func FuzzWhatIsReadIsWrittenAlike(f *testing.F) {
	f.Add("result bytes=65536 buffers=256 variant=two-shot operations=120 cpu=1.5e-05 wrong=3 seconds=1e-05,2.5e-05")
	f.Add("result bytes=4 buffers=1 operations=1 cpu=0 wrong=0 seconds=1 other=2")
	f.Add("result seconds=,")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := parseResult(line)
		if err != nil {
			require.ErrorIs(t, err, errNoResult)
			return
		}
		once, err := parseResult(r.format())
		require.NoError(t, err, "%q", r.format())
		twice, err := parseResult(once.format())
		require.NoError(t, err)
		require.Equal(t, once, twice)
		require.Equal(t, r.Job, once.Job)
		require.Equal(t, r.Wrong, once.Wrong)
		require.Len(t, once.Seconds, len(r.Seconds))
	})
}

func TestListenerTakesResultsOutOfWhatIsPrinted(t *testing.T) {
	heard := 0
	l := listener{heard: func() { heard++ }}
	text := "a warning\nabout Open  MPI\tv4.1.4\nresult bytes=4 buffers=1 operations=1 cpu=0 wrong=0 seconds=1\n" +
		"result bytes=8 buffers=1 operations=1 cpu=0 wrong=0 seconds=2\nresult without an end"
	for i := range len(text) { // in the smallest pieces
		n, err := l.Write([]byte{text[i]})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	require.Equal(t, "Open MPI v4.1.4", l.about)
	require.Equal(t, 2, heard)
	results, err := l.told([]job{{4, 1}, {8, 1}})
	require.NoError(t, err)
	require.Len(t, results, 2)
	require.Equal(t, []float64{2}, results[1].Seconds)

	_, err = l.Write([]byte("\n"))
	require.ErrorIs(t, err, errNoResult, "a result that is none")
}

func TestListenerRefusesALineThatNeverEnds(t *testing.T) {
	var l listener
	_, err := l.Write(make([]byte, mostLine+1))
	require.Error(t, err)
}

func TestWhatIsToldMustAnswerTheJobs(t *testing.T) {
	of := func(bytes, wrong int) result { return result{Job: job{bytes, 1}, Wrong: wrong, Seconds: []float64{1}} }
	jobs := []job{{4, 1}, {8, 1}}
	for _, tc := range []struct {
		name     string
		results  []result
		believed int
		text     string // of the error
	}{
		{"all", []result{of(4, 0), of(8, 0)}, 2, ""},
		{"one is missing", []result{of(4, 0)}, 1, "1 results for 2 jobs"},
		{"another size", []result{of(4, 0), of(16, 0)}, 1, "did not have"},
		{"one too many", []result{of(4, 0), of(8, 0), of(8, 0)}, 2, "did not have"},
		{"wrong elements", []result{of(4, 0), of(8, 3)}, 1, "3 wrong elements in results of 8 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := listener{results: tc.results}
			results, err := l.told(jobs)
			require.Len(t, results, tc.believed)
			if tc.text == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.text)
			}
		})
	}
}
