package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/assert/yaml"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/netlab"
)

// site is a lab whose hosts have the command in their PATH.
type site struct {
	*netlab.Lab
	t   *testing.T
	dir string // of programs that go before others
}

func newSite(t *testing.T, hosts int, opts ...netlab.Option) site {
	t.Helper()
	s := site{netlab.New(t, hosts, opts...), t, t.TempDir()}
	self, err := os.Executable()
	require.NoError(t, err)
	s.install("gollective", self)
	return s
}

func (s site) install(name, program string) {
	s.t.Helper()
	require.NoError(s.t, os.Symlink(program, filepath.Join(s.dir, name)))
}

// run has a shell on each of the hosts do what the script with its number says, all at
// the same time, and returns what each printed.
func (s site) run(env []string, scripts map[int]string) map[int]string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	outputs, errs := make(map[int]string), make(map[int]error)
	for host, script := range scripts {
		all.Go(func() {
			words := append(s.Host(host).Prefix(), "unshare", "--uts", "sh", "-ec", "hostname "+s.Host(host).Name()+"\n"+script)
			cmd := exec.CommandContext(ctx, words[0], words[1:]...)
			cmd.Env = append(append(withoutPlace(), "PATH="+s.dir+":"+os.Getenv("PATH")), env...)
			cmd.WaitDelay = 5 * time.Second
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			mu.Lock()
			defer mu.Unlock()
			outputs[host], errs[host] = out.String(), err
		})
	}
	all.Wait()
	for host, err := range errs {
		require.NoError(s.t, err, "host %d: %s\n%s", host, scripts[host], outputs[host])
	}
	return outputs
}

// withoutPlace is the environment without what would give a process a place in a job.
func withoutPlace() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return regexp.MustCompile(`^(OMPI|PMI|SLURM|GOLLECTIVE|MASTER|LOCAL|JOB_COMPLETION)_|^(PMIX|RANK|WORLD_SIZE|HOSTNAME)`).MatchString(v)
	})
}

// readme is the text of a section.
func readme(t *testing.T, section string) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, text, found := bytes.Cut(text, []byte("\n## "+section+"\n"))
	require.True(t, found, "README has no section %q", section)
	text, _, _ = bytes.Cut(text, []byte("\n## "))
	return string(text)
}

// transcripts are the blocks of a text in which lines begin with a host and a prompt:
// what is typed on each host.
func transcripts(t *testing.T, text string) (blocks []map[int]string) {
	t.Helper()
	prompt := regexp.MustCompile(`^host(\d+)\$ (.*)$`)
	for i, block := range strings.Split(text, "```") {
		if i%2 == 0 { // between blocks
			continue
		}
		scripts := make(map[int]string)
		for line := range strings.Lines(block) {
			if found := prompt.FindStringSubmatch(strings.TrimSuffix(line, "\n")); found != nil {
				host, err := strconv.Atoi(found[1])
				require.NoError(t, err)
				scripts[host] += found[2] + "\n"
			}
		}
		if len(scripts) > 0 {
			blocks = append(blocks, scripts)
		}
	}
	return blocks
}

// What rank 0 of a verified run prints.
var (
	verified = regexp.MustCompile(`(?m)^# Out of bounds values : 0 OK$`)
	rankLine = regexp.MustCompile(`(?m)^#\s+Rank\s+(\d+) Group\s+\d+ Pid\s+\d+ on\s+(\S+) `)
)

// requireVerified checks what perf printed: that results were right, and which rank
// was on which host.
func requireVerified(t *testing.T, out string, hosts ...string) {
	t.Helper()
	require.Regexp(t, verified, out)
	var got []string
	for rank, line := range rankLine.FindAllStringSubmatch(out, -1) {
		require.Equal(t, strconv.Itoa(rank), line[1], out)
		got = append(got, line[2])
	}
	require.Equal(t, hosts, got, out)
}

// Every block of README's section in which something is typed on hosts works as it
// stands there. The launchers are the real ones: only what starts a program on
// another host, ssh, has a stand-in.
func TestReadmeOnTwoHosts(t *testing.T) {
	blocks := transcripts(t, readme(t, "Several hosts"))
	require.NotEmpty(t, blocks)
	for _, scripts := range blocks {
		lines := strings.Split(strings.TrimSpace(scripts[0]), "\n")
		t.Run(lines[len(lines)-1], func(t *testing.T) {
			s := newSite(t, 2)
			hosts := []string{"host0", "host1"}
			var env []string
			switch {
			case strings.Contains(scripts[0], "mpirun "):
				env = s.openMPI()
				hosts = []string{"host0", "host0", "host1", "host1"}
			case strings.Contains(scripts[0], "mpiexec.hydra "):
				env = s.hydra()
				hosts = []string{"host0", "host0", "host1", "host1"}
			}
			requireVerified(t, s.run(env, scripts)[0], hosts...)
		})
	}
}

// openMPI makes mpirun the one of Open MPI.
func (s site) openMPI() []string {
	path, err := exec.LookPath("mpirun.openmpi")
	if err != nil {
		s.t.Skip("mpirun.openmpi is not installed (Debian: apt-get install openmpi-bin)")
	}
	s.install("mpirun", path)
	return []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
		"OMPI_MCA_plm_rsh_agent=" + s.agent(), "OMPI_MCA_rmaps_base_oversubscribe=1"}
}

func (s site) hydra() []string {
	if _, err := exec.LookPath("mpiexec.hydra"); err != nil {
		s.t.Skip("mpiexec.hydra is not installed (Debian: apt-get install mpich)")
	}
	return []string{"HYDRA_LAUNCHER=ssh", "HYDRA_LAUNCHER_EXEC=" + s.agent()}
}

// agent is a program that runs a command on another host, as ssh does.
func (s site) agent() string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\nwhile case $1 in -*) true;; *) false;; esac; do shift; done\nhost=$1; shift\ncase $host in\n")
	for i := range s.Hosts() {
		h := s.Host(i)
		fmt.Fprintf(&b, "%s) exec %s unshare --uts sh -c \"hostname $host; $*\";;\n", h.Name(), strings.Join(h.Prefix(), " "))
	}
	b.WriteString("esac\necho no host $host >&2\nexit 1\n")
	name := filepath.Join(s.dir, "agent")
	require.NoError(s.t, os.WriteFile(name, []byte(b.String()), 0o755))
	return name
}

// manifest is what of a Kubernetes object concerns how pods find each other.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		ClusterIP                string            `yaml:"clusterIP"`
		PublishNotReadyAddresses bool              `yaml:"publishNotReadyAddresses"`
		Selector                 map[string]string `yaml:"selector"`

		CompletionMode string `yaml:"completionMode"`
		Completions    int
		Parallelism    int
		BackoffLimit   *int `yaml:"backoffLimit"`
		Template       struct {
			Spec struct {
				Subdomain     string
				RestartPolicy string `yaml:"restartPolicy"`
				Containers    []struct {
					Command []string
					Env     []struct {
						Name, Value string
						ValueFrom   struct {
							SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
						} `yaml:"valueFrom"`
					}
				}
			}
		}
	}
}

// The example's objects fit together, and its pods, each on a host of its own with
// what Kubernetes would tell it, do what it is for.
func TestKubernetesExample(t *testing.T) {
	text, err := os.ReadFile("../../examples/kubernetes/all_reduce.yaml")
	require.NoError(t, err)
	objects := make(map[string]manifest)
	for _, part := range strings.Split(string(text), "\n---\n") {
		var m manifest
		require.NoError(t, yaml.Unmarshal([]byte(part), &m))
		objects[m.Kind] = m
	}
	require.Len(t, objects, 2)
	service, job := objects["Service"], objects["Job"]
	pod := job.Spec.Template.Spec
	assert.Equal(t, "None", service.Spec.ClusterIP, "else its names are not those of pods")
	assert.True(t, service.Spec.PublishNotReadyAddresses)
	assert.Equal(t, map[string]string{"batch.kubernetes.io/job-name": job.Metadata.Name}, service.Spec.Selector)
	assert.Equal(t, service.Metadata.Name, pod.Subdomain)
	assert.Equal(t, "Indexed", job.Spec.CompletionMode)
	assert.Equal(t, job.Spec.Completions, job.Spec.Parallelism, "all at once")
	require.NotNil(t, job.Spec.BackoffLimit)
	assert.Equal(t, 0, *job.Spec.BackoffLimit)
	assert.Equal(t, "Never", pod.RestartPolicy)
	require.Len(t, pod.Containers, 1)

	name := func(i int) string { return fmt.Sprintf("%s-%d", job.Metadata.Name, i) }
	s := newSite(t, job.Spec.Completions, netlab.Names(func(i int) string { return name(i) + "." + service.Metadata.Name }))
	shared := "export"
	for _, e := range pod.Containers[0].Env {
		value := e.Value
		if e.ValueFrom.SecretKeyRef.Name != "" {
			create := fmt.Sprintf("create secret generic %s --from-literal=%s=", e.ValueFrom.SecretKeyRef.Name, e.ValueFrom.SecretKeyRef.Key)
			assert.Contains(t, string(text), create)
			value = "what only the cluster knows"
		}
		shared += fmt.Sprintf(" %s='%s'", e.Name, value)
	}
	assert.Contains(t, shared, fmt.Sprintf(" GOLLECTIVE_SIZE='%d'", job.Spec.Completions))
	scripts := make(map[int]string)
	var names []string
	for i := range job.Spec.Completions {
		scripts[i] = fmt.Sprintf("hostname %s\nexport HOSTNAME=%[1]s JOB_COMPLETION_INDEX=%d\n%s\n%s\n",
			name(i), i, shared, strings.Join(pod.Containers[0].Command, " "))
		names = append(names, name(i))
	}
	requireVerified(t, s.run(nil, scripts)[0], names...)
}
