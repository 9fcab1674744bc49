package kubeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// iptablesLegacy are chains in the kernel's legacy tables. These have no netlink interface; the iptables programs of the host
// read and change them.
type iptablesLegacy struct{}

// legacyFamilies are the files that list the tables in use, and the programs for them.
var legacyFamilies = []struct{ family, names, program string }{
	{"ip", "ip_tables_names", "iptables"}, {"ip6", "ip6_tables_names", "ip6tables"},
}

// errProgramMissing means that there may be leftovers that cannot be read.
var errProgramMissing = errors.New("the kernel has legacy iptables tables, and the programs to read them are missing")

// findProgram returns the path of a legacy program with a suffix such as save.
func findProgram(ctx context.Context, program, suffix string) (string, error) {
	if path, err := exec.LookPath(program + "-legacy-" + suffix); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(program + "-" + suffix)
	if err != nil {
		return "", fmt.Errorf("%w: %s-%s (install iptables)", errProgramMissing, program, suffix)
	}
	// In old versions and some images, the program without a prefix is the legacy one.
	if out, err := exec.CommandContext(ctx, path, "--version").Output(); err == nil && bytes.Contains(out, []byte("nf_tables")) {
		return "", fmt.Errorf("%w: %s-legacy-%s (install iptables)", errProgramMissing, program, suffix)
	}
	return path, nil
}

// saveTables returns the output of a family's iptables-save, or "" if the kernel has no such tables in use.
func saveTables(ctx context.Context, names, program string) (string, error) {
	used, err := os.ReadFile("/proc/thread-self/net/" + names)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("kube-proxy's leftovers: %w", err)
	}
	if !slices.ContainsFunc(strings.Fields(string(used)), func(t string) bool { return slices.Contains(iptablesTables, t) }) {
		return "", nil
	}
	path, err := findProgram(ctx, program, "save")
	if err != nil {
		return "", fmt.Errorf("kube-proxy's leftovers: %w", err)
	}
	out, err := exec.CommandContext(ctx, path).Output()
	if err != nil {
		return "", fmt.Errorf("kube-proxy's leftovers: %s: %w%s", path, err, stderr(err))
	}
	return string(out), nil
}

func stderr(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return ": " + string(bytes.TrimSpace(exit.Stderr))
	}
	return ""
}

func (iptablesLegacy) find(ctx context.Context) (out []Leftover, err error) {
	var errs []error
	for _, f := range legacyFamilies {
		text, err := saveTables(ctx, f.names, f.program)
		errs = append(errs, err)
		for _, t := range parseSave(text) {
			out = append(out, Leftover{Location: "iptables (legacy), " + f.family + " " + t.name, Kind: "chains", Count: len(t.chains)})
		}
	}
	return out, errors.Join(errs...)
}

func (iptablesLegacy) remove(ctx context.Context) error {
	for _, f := range legacyFamilies {
		text, err := saveTables(ctx, f.names, f.program)
		if err != nil {
			return err
		}
		list := parseSave(text)
		if len(list) == 0 {
			continue
		}
		path, err := findProgram(ctx, f.program, "restore")
		if err != nil {
			return fmt.Errorf("kube-proxy's leftovers: %w", err)
		}
		cmd := exec.CommandContext(ctx, path, "--noflush", "--wait", "5")
		cmd.Stdin = strings.NewReader(restoreInput(list))
		if _, err := cmd.Output(); err != nil {
			return fmt.Errorf("kube-proxy's leftovers: %s: %w%s", path, err, stderr(err))
		}
	}
	return nil
}

// savedTable is a table with chains of kube-proxy.
type savedTable struct {
	name   string
	chains []string // of kube-proxy
	jumps  []string // rules in other chains that jump to them, without "-A "
}

// parseSave reads the output of iptables-save. It omits tables without chains of kube-proxy.
func parseSave(text string) (out []savedTable) {
	var t savedTable
	var rules []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			t, rules = savedTable{name: line[1:]}, nil
		case strings.HasPrefix(line, ":"):
			if name, _, _ := strings.Cut(line[1:], " "); slices.Contains(iptablesTables, t.name) && isKubeProxyChain(t.name, name) {
				t.chains = append(t.chains, name)
			}
		case strings.HasPrefix(line, "-A "):
			rules = append(rules, line[3:])
		case line == "COMMIT" && len(t.chains) > 0:
			for _, r := range rules {
				chain, target := chainAndTarget(r)
				if slices.Contains(t.chains, target) && !slices.Contains(t.chains, chain) {
					t.jumps = append(t.jumps, r)
				}
			}
			out = append(out, t)
		}
	}
	return out
}

// chainAndTarget returns the chain of a rule and the chain that it jumps to. Quoted words, such as comments, are not options.
func chainAndTarget(rule string) (chain, target string) {
	var words []string
	var word strings.Builder
	quoted, escaped, hasWord := false, false, false
	for _, r := range rule {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quoted:
			escaped = true
		case r == '"':
			quoted, hasWord = !quoted, true
		case r == ' ' && !quoted:
			if hasWord || word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
			hasWord = false
		default:
			if quoted && word.Len() == 0 {
				word.WriteByte('"') // a quoted word is not an option
			}
			word.WriteRune(r)
		}
	}
	words = append(words, word.String())
	for i := 1; i+1 < len(words); i++ {
		if words[i] == "-j" || words[i] == "-g" {
			target = words[i+1]
		}
	}
	return words[0], target
}

// restoreInput returns the input for iptables-restore --noflush that removes the chains: one transaction for each table.
func restoreInput(list []savedTable) string {
	var b strings.Builder
	for _, t := range list {
		fmt.Fprintf(&b, "*%s\n", t.name)
		for _, r := range t.jumps {
			fmt.Fprintf(&b, "-D %s\n", r)
		}
		for _, c := range t.chains {
			fmt.Fprintf(&b, "-F %s\n", c)
		}
		for _, c := range t.chains {
			fmt.Fprintf(&b, "-X %s\n", c)
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}
