package load

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parse reads flags as the command does.
func parse(args ...string) (Options, error) {
	o := DefaultOptions()
	fs := pflag.NewFlagSet("load", pflag.ContinueOnError)
	o.AddFlags(fs)
	err := fs.Parse(args)
	o.Settle(fs.Changed)
	if err == nil {
		err = o.validate()
	}
	return o, err
}

func TestFlags(t *testing.T) {
	changed := func(change func(*Options)) Options {
		o := DefaultOptions()
		change(&o)
		return o
	}
	for args, want := range map[string]Options{
		"":                                DefaultOptions(),
		"-n 3":                            changed(func(o *Options) { o.Ranks = 3 }),
		"--policies block,spin":           changed(func(o *Options) { o.Policies = []string{"block", "spin"} }),
		"--proxies inline":                changed(func(o *Options) { o.Proxies = []string{"inline"} }),
		"--duration 250ms":                changed(func(o *Options) { o.Duration = 250 * time.Millisecond }),
		"--rate 1M":                       changed(func(o *Options) { o.Rate = 1 << 20 }),
		"--rate 0":                        changed(func(o *Options) { o.Rate = 0 }),
		"--channels 2":                    changed(func(o *Options) { o.Channels = 2 }),
		"--quick":                         changed(func(o *Options) { o.Quick, o.Duration, o.Late = true, quickDuration, quickLate }),
		"--quick --duration 2s":           changed(func(o *Options) { o.Quick, o.Duration, o.Late = true, 2*time.Second, quickLate }),
		"--late-events 5 --quick":         changed(func(o *Options) { o.Quick, o.Duration, o.Late = true, quickDuration, 5 }),
		"-o a.SVG -J b":                   changed(func(o *Options) { o.Chart, o.JSON = "a.SVG", "b" }),
		"--output x.png --output_file y":  changed(func(o *Options) { o.Chart, o.JSON = "x.png", "y" }),
		"--policies spin --proxies":       {},
		"--policies spin,spin":            {},
		"--policies lazy":                 {},
		"--policies=":                     {},
		"--proxies auto":                  {},
		"-n 1":                            {},
		"-n two":                          {},
		"-n 2x":                           {},
		"--duration 1ms":                  {},
		"--duration soon":                 {},
		"--rate fast":                     {},
		"--rate -1":                       {},
		"--channels 0":                    {},
		"-o chart.pdf":                    {},
		"-o chart":                        {},
		"--late-events 0":                 {},
		"--late-events 99999999999999999": {},
	} {
		t.Run(args, func(t *testing.T) {
			got, err := parse(strings.Fields(args)...)
			if want.Ranks > 0 {
				require.NoError(t, err)
				require.Equal(t, want, got)
				return
			}
			require.Error(t, err)
			if !strings.HasSuffix(args, "--proxies") { // pflag's own words
				assert.Contains(t, err.Error(), "accepted: ")
			}
		})
	}
}

// Every policy meets every driver; only spin has a slow network, after all others.
func TestCases(t *testing.T) {
	o := DefaultOptions()
	o.Ranks, o.Channels, o.Late = 3, 2, 7
	var got []string
	for _, c := range o.cases() {
		assert.Equal(t, []int{3, 2, 7}, []int{c.Ranks, c.Channels, c.Late})
		assert.Equal(t, time.Second, c.Duration)
		name := c.Wait + " " + c.Proxy
		if c.Rate > 0 {
			assert.Equal(t, o.Rate, c.Rate)
			name += " slow"
		}
		got = append(got, name)
	}
	assert.Equal(t, []string{
		"spin thread", "spin inline", "yield thread", "yield inline",
		"adaptive thread", "adaptive inline", "block thread", "block inline",
		"spin thread slow", "spin inline slow",
	}, got)

	o.Rate = 0
	assert.Len(t, o.cases(), 8)
	o.Rate, o.Policies = 1, []string{"block"}
	assert.Len(t, o.cases(), 2)
}
