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

// iptablesLegacy are the same chains where iptables writes to the kernel's own, older tables. These have no netlink
// interface; they are changed with the iptables programs, if the host has them.
type iptablesLegacy struct{}

// legacyFamilies: where the kernel names the tables that are in use, and the programs for them.
var legacyFamilies = []struct{ family, names, program string }{
	{"ip", "ip_tables_names", "iptables"}, {"ip6", "ip6_tables_names", "ip6tables"},
}

// errNoPrograms means that there may be leftovers that cannot be seen.
var errNoPrograms = errors.New("the kernel has legacy iptables tables, and the programs to look at them are missing")

// tool gives the path of the legacy program whose name ends in what, such as save.
func tool(ctx context.Context, program, what string) (string, error) {
	if path, err := exec.LookPath(program + "-legacy-" + what); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(program + "-" + what)
	if err != nil {
		return "", fmt.Errorf("%w: %s-%s (install iptables)", errNoPrograms, program, what)
	}
	// Before there were two kinds, and in some images still, the plain name is the legacy one.
	if out, err := exec.CommandContext(ctx, path, "--version").Output(); err == nil && bytes.Contains(out, []byte("nf_tables")) {
		return "", fmt.Errorf("%w: %s-legacy-%s (install iptables)", errNoPrograms, program, what)
	}
	return path, nil
}

// dump gives what a family's legacy save program prints; "" when the kernel has no such tables in use.
func dump(ctx context.Context, names, program string) (string, error) {
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
	path, err := tool(ctx, program, "save")
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
		text, err := dump(ctx, f.names, f.program)
		errs = append(errs, err)
		for _, t := range parseSave(text) {
			out = append(out, Leftover{Where: "iptables (legacy), " + f.family + " " + t.name, What: "chains", Count: len(t.chains)})
		}
	}
	return out, errors.Join(errs...)
}

func (iptablesLegacy) remove(ctx context.Context) error {
	for _, f := range legacyFamilies {
		text, err := dump(ctx, f.names, f.program)
		if err != nil {
			return err
		}
		list := parseSave(text)
		if len(list) == 0 {
			continue
		}
		path, err := tool(ctx, f.program, "restore")
		if err != nil {
			return fmt.Errorf("kube-proxy's leftovers: %w", err)
		}
		cmd := exec.CommandContext(ctx, path, "--noflush", "--wait", "5")
		cmd.Stdin = strings.NewReader(removal(list))
		if _, err := cmd.Output(); err != nil {
			return fmt.Errorf("kube-proxy's leftovers: %s: %w%s", path, err, stderr(err))
		}
	}
	return nil
}

// saved is what iptables-save says of a table that has chains of kube-proxy's.
type saved struct {
	name   string
	chains []string // kube-proxy's
	jumps  []string // the rules of others that lead there, without their "-A "
}

// parseSave reads the output of iptables-save; tables without anything of kube-proxy's are left out.
func parseSave(text string) (out []saved) {
	var t saved
	var rules []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			t, rules = saved{name: line[1:]}, nil
		case strings.HasPrefix(line, ":"):
			if name, _, _ := strings.Cut(line[1:], " "); slices.Contains(iptablesTables, t.name) && isChain(t.name, name) {
				t.chains = append(t.chains, name)
			}
		case strings.HasPrefix(line, "-A "):
			rules = append(rules, line[3:])
		case line == "COMMIT" && len(t.chains) > 0:
			for _, r := range rules {
				chain, target := endsOf(r)
				if slices.Contains(t.chains, target) && !slices.Contains(t.chains, chain) {
					t.jumps = append(t.jumps, r)
				}
			}
			out = append(out, t)
		}
	}
	return out
}

// endsOf gives the chain that a rule is in and the one that it leads to. What is quoted, a comment for one, may look
// like an option.
func endsOf(rule string) (chain, target string) {
	var words []string
	var word strings.Builder
	quoted, escaped, any := false, false, false
	for _, r := range rule {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quoted:
			escaped = true
		case r == '"':
			quoted, any = !quoted, true
		case r == ' ' && !quoted:
			if any || word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
			any = false
		default:
			if quoted && word.Len() == 0 {
				word.WriteByte('"') // so that it is no option
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

// removal is what to tell iptables-restore --noflush: each table at once.
func removal(list []saved) string {
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
