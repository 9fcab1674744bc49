package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The service account of deploy/.
const (
	accountNamespace = "sluice-system"
	accountName      = "sluice"
)

// deployed are the files that make the account and grant its rights.
func deployed() ([]string, error) {
	dir, err := filepath.Abs("../../../deploy/kustomize/base")
	if err != nil {
		return nil, err
	}
	return []string{filepath.Join(dir, "namespace.yaml"), filepath.Join(dir, "serviceaccount.yaml"), filepath.Join(dir, "rbac.yaml")}, nil
}

// deploy applies them.
func (l *lab) deploy(ctx context.Context) error {
	files, err := deployed()
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, err := l.Kubectl(ctx, "", "apply", "-f", f); err != nil {
			return err
		}
	}
	return nil
}

// right is one verb of a rule: "list services", "create events.k8s.io/events".
func right(verb, group, resource string) string {
	if group != "" {
		resource = group + "/" + resource
	}
	return verb + " " + resource
}

// granted are the rights of sluice's ClusterRole.
func (l *lab) granted(ctx context.Context) ([]string, error) {
	role, err := l.clusterRole(ctx, "sluice")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					out = append(out, right(verb, group, resource))
				}
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// whole tells whether all tests of the package run.
func whole() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return true
}

// checkRules compares what sluice has requested over all tests with what it may: nothing that it may not, and nothing
// granted that it never does.
func (l *lab) checkRules() error {
	granted, err := l.granted(context.Background())
	if err != nil {
		return err
	}
	requests, err := l.Requests()
	if err != nil {
		return err
	}
	used, problems := map[string]bool{}, []error{}
	for _, r := range requests {
		resource := r.Resource
		if r.Subresource != "" {
			resource += "/" + r.Subresource
		}
		what := right(r.Verb, r.Group, resource)
		if !slices.Contains(granted, what) && !used[what] {
			problems = append(problems, fmt.Errorf("%s: requested (%s: %d) and not granted", what, r.URI, r.Code))
		}
		used[what] = true
	}
	for _, g := range granted {
		if !used[g] {
			problems = append(problems, fmt.Errorf("%s: granted, and never requested", g))
		}
	}
	fmt.Fprintf(os.Stderr, "cluster tests: %d requests of sluice: %s\n", len(requests), strings.Join(slices.Sorted(maps.Keys(used)), ", "))
	return errors.Join(problems...)
}
