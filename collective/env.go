package collective

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/launch"
	"github.com/gollective/gollective/internal/spin"
)

// envPrefix begins the names of all variables; what follows is NCCL's name for
// the same thing where NCCL has it.
const envPrefix = "GOLLECTIVE_"

// variables sets the field of a Config that belongs to each name.
var variables = map[string]func(*Config, string) error{
	"ALGO":           parsed(plan.ParseAlgorithm, func(c *Config) *plan.Algorithm { return &c.Algorithm }),
	"PROTO":          parsed(plan.ParseProtocol, func(c *Config) *plan.Protocol { return &c.Protocol }),
	"WAIT":           parsed(spin.ParsePolicy, func(c *Config) *spin.Policy { return &c.Wait }),
	"TIMEOUT":        parsed(time.ParseDuration, func(c *Config) *time.Duration { return &c.Timeout }),
	"MIN_NCHANNELS":  parsed(integer, func(c *Config) *int { return &c.MinChannels }),
	"MAX_NCHANNELS":  parsed(integer, func(c *Config) *int { return &c.MaxChannels }),
	"BUFFSIZE":       parsed(integer, func(c *Config) *int { return &c.BuffSize }),
	"LL_BUFFSIZE":    parsed(integer, func(c *Config) *int { return &c.LLBuffSize }),
	"LL128_BUFFSIZE": parsed(integer, func(c *Config) *int { return &c.LL128BuffSize }),
	"P2P_CHUNKSIZE":  parsed(integer, func(c *Config) *int { return &c.P2PChunkSize }),
	"RANKS_PER_NODE": parsed(integer, func(c *Config) *int { return &c.RanksPerNode }),
	"TRANSPORT":      parsed(text, func(c *Config) *string { return &c.Transport }),
	"JOIN_TIMEOUT":   parsed(time.ParseDuration, func(c *Config) *time.Duration { return &c.JoinTimeout }),
	"SOCKET_IFNAME":  parsed(text, func(c *Config) *string { return &c.SocketIfname }),
	"SOCKET_FAMILY":  parsed(text, func(c *Config) *string { return &c.SocketFamily }),
	"PORTS":          parsed(text, func(c *Config) *string { return &c.Ports }),
	"DEBUG":          debug,
}

// elsewhere are the names that other parts of the project read: launch, the perf
// tool (TESTS_) and the project's own tests (TEST_).
func elsewhere(name string) bool {
	return slices.Contains(launch.Variables(), name) ||
		strings.HasPrefix(name, envPrefix+"TESTS_") || strings.HasPrefix(name, envPrefix+"TEST_")
}

// text is the parser of what is taken as it is.
func text(s string) (string, error) { return s, nil }

// debug sets the logger, unless the program has one: as NCCL_DEBUG, without its
// TRACE.
func debug(c *Config, level string) error {
	switch strings.ToUpper(level) {
	case "NONE", "VERSION", "WARN":
	case "INFO":
		if c.Logger == nil {
			c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
	default:
		return errors.New("accepted are NONE, VERSION, WARN and INFO")
	}
	return nil
}

func parsed[V any](parse func(string) (V, error), field func(*Config) *V) func(*Config, string) error {
	return func(c *Config, text string) error {
		v, err := parse(text)
		if err == nil {
			*field(c) = v
		}
		return err
	}
}

// integer reads decimal, 0x and 0 (octal) numbers, as NCCL does. Unlike NCCL it
// does not take garbage for 0.
func integer(text string) (int, error) {
	n, err := strconv.ParseInt(text, 0, 0)
	return int(n), err
}

// applyEnviron lets variables, given as NAME=VALUE, override c's fields. An empty
// value is as none.
func (c Config) applyEnviron(environ []string) (Config, error) {
	var errs []error
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		tail, ours := strings.CutPrefix(name, envPrefix)
		if !ours || value == "" {
			continue
		}
		set, known := variables[tail]
		switch {
		case known:
			if err := set(&c, value); err != nil {
				errs = append(errs, fmt.Errorf("%w: %s=%s: %w", ErrInvalid, name, value, err))
			}
		case !elsewhere(name):
			c.logger().Warn("unknown environment variable", "name", name)
		}
	}
	return c, errors.Join(errs...)
}

// resolve is the Config that a communicator is made with: the environment's
// values over c's, and the defaults.
func (c Config) resolve() (Config, error) {
	c, err := c.applyEnviron(os.Environ())
	if err != nil {
		return c, err
	}
	return c.withDefaults()
}
