package collective

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/launch"
	"github.com/gollective/gollective/internal/spin"
)

// envPrefix begins the names of all variables; what follows is NCCL's name for
// the same thing where NCCL has it.
const envPrefix = "GOLLECTIVE_"

// variable is one that sets a field of a Config.
type variable struct {
	field string
	set   func(*Config, string) error
}

// variables are those that set a field, by the rest of their names.
var variables = map[string]variable{
	"ALGO":             {"Algorithm", algorithms},
	"PROTO":            {"Protocol", protocols},
	"WAIT":             {"Wait", parsed(policy, func(c *Config) *spin.Policy { return &c.Wait })},
	"TIMEOUT":          {"Timeout", parsed(duration, func(c *Config) *time.Duration { return &c.Timeout })},
	"MIN_NCHANNELS":    {"MinChannels", parsed(integer, func(c *Config) *int { return &c.MinChannels })},
	"MAX_NCHANNELS":    {"MaxChannels", parsed(integer, func(c *Config) *int { return &c.MaxChannels })},
	"BUFFSIZE":         {"BuffSize", parsed(integer, func(c *Config) *int { return &c.BuffSize })},
	"LL_BUFFSIZE":      {"LLBuffSize", parsed(integer, func(c *Config) *int { return &c.LLBuffSize })},
	"LL128_BUFFSIZE":   {"LL128BuffSize", parsed(integer, func(c *Config) *int { return &c.LL128BuffSize })},
	"P2P_CHUNKSIZE":    {"P2PChunkSize", parsed(integer, func(c *Config) *int { return &c.P2PChunkSize })},
	"RANKS_PER_NODE":   {"RanksPerNode", parsed(integer, func(c *Config) *int { return &c.RanksPerNode })},
	"TUNER_FILE":       {"TunerFile", parsed(text, func(c *Config) *string { return &c.TunerFile })},
	"REPRODUCIBLE":     {"Reproducible", parsed(onOff, func(c *Config) *bool { return &c.Reproducible })},
	"TRANSPORT":        {"Transport", parsed(text, func(c *Config) *string { return &c.Transport })},
	"HOSTID":           {"HostID", parsed(text, func(c *Config) *string { return &c.HostID })},
	"PROXY":            {"Proxy", parsed(text, func(c *Config) *string { return &c.Proxy })},
	"PROXY_CPUSET":     {"ProxyCPUs", parsed(text, func(c *Config) *string { return &c.ProxyCPUs })},
	"SOCKET_NTHREADS":  {"SocketThreads", parsed(integer, func(c *Config) *int { return &c.SocketThreads })},
	"NSOCKS_PERTHREAD": {"SocketsPerThread", parsed(integer, func(c *Config) *int { return &c.SocketsPerThread })},
	"SOCKET_BUFFER":    {"SocketBuffer", parsed(integer, func(c *Config) *int { return &c.SocketBuffer })},
	"SOCKET_RATE":      {"SocketRate", parsed(integer, func(c *Config) *int { return &c.SocketRate })},
	"PEER_TIMEOUT":     {"PeerTimeout", parsed(duration, func(c *Config) *time.Duration { return &c.PeerTimeout })},
	"TLS":              {"TLS", parsed(text, func(c *Config) *string { return &c.TLS })},
	"TLS_CERT":         {"TLSCert", parsed(text, func(c *Config) *string { return &c.TLSCert })},
	"TLS_KEY":          {"TLSKey", parsed(text, func(c *Config) *string { return &c.TLSKey })},
	"TLS_CA":           {"TLSCA", parsed(text, func(c *Config) *string { return &c.TLSCA })},
	"JOIN_TIMEOUT":     {"JoinTimeout", parsed(duration, func(c *Config) *time.Duration { return &c.JoinTimeout })},
	"SOCKET_IFNAME":    {"SocketIfname", parsed(text, func(c *Config) *string { return &c.SocketIfname })},
	"SOCKET_FAMILY":    {"SocketFamily", parsed(text, func(c *Config) *string { return &c.SocketFamily })},
	"PORTS":            {"Ports", parsed(text, func(c *Config) *string { return &c.Ports })},
	"ACCOUNTING":       {"Accounting", parsed(onOff, func(c *Config) *bool { return &c.Accounting })},
	"PROFILE":          {"Profile", parsed(onOff, func(c *Config) *bool { return &c.Profile })},
	"DEBUG":            {"Logger", debug},
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
	if err != nil {
		return 0, errors.New("accepted are whole numbers such as 4194304 or 0x400000")
	}
	return int(n), nil
}

func onOff(text string) (bool, error) {
	switch text {
	case "0", "1":
		return text == "1", nil
	}
	return false, errors.New("accepted are 0 and 1")
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("accepted are times such as 90s or 1m30s")
	}
	return d, nil
}

// policy reads a way of waiting in any case.
func policy(text string) (spin.Policy, error) { return spin.ParsePolicy(strings.ToLower(text)) }

// algorithms forces one algorithm, or allows those of a list.
func algorithms(c *Config, text string) error {
	if a, err := plan.ParseAlgorithm(text); err == nil && slices.Contains(plan.Algorithms(), a) {
		c.Algorithm = a
		return nil
	}
	c.Algorithm = plan.AutoAlgorithm
	return c.allowed.ParseAlgorithms(text)
}

// protocols forces one protocol, or allows those of a list.
func protocols(c *Config, text string) error {
	if p, err := plan.ParseProtocol(text); err == nil {
		c.Protocol = p
		return nil
	}
	c.Protocol = plan.AutoProtocol
	return c.allowed.ParseProtocols(text)
}

// unknown are the variables that a warning has named already.
var unknown sync.Map

// applyEnviron lets variables, given as NAME=VALUE, override c's fields. An empty
// value is as none. What can be read is applied, also when there is an error.
func (c Config) applyEnviron(environ []string) (Config, error) {
	var errs []error
	c.origins = make(map[string]string)
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		tail, ours := strings.CutPrefix(name, envPrefix)
		if !ours || value == "" {
			continue
		}
		v, known := variables[tail]
		if !known {
			if _, warned := unknown.LoadOrStore(name, true); !warned && !elsewhere(name) {
				c.logger().Warn("unknown environment variable", "name", name)
			}
			continue
		}
		if err := v.set(&c, value); err != nil {
			errs = append(errs, fmt.Errorf("%w: %s=%s: %w", ErrInvalid, name, value, err))
			continue
		}
		c.origins[v.field] = name + "=" + value
	}
	return c, errors.Join(errs...)
}

// resolve is the Config that a communicator is made with: the environment's
// values over c's, and the defaults. The error tells of all that is wrong.
func (c Config) resolve() (Config, error) {
	c, unreadable := c.applyEnviron(os.Environ())
	c, unacceptable := c.withDefaults()
	return c, errors.Join(unreadable, unacceptable)
}
