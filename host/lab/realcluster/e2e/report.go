package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// State is what became of a spec.
const (
	passed  = "passed"
	skipped = "skipped" // by itself: the cluster lacks something
)

type spec struct {
	state    string
	attempts int
	took     time.Duration
	message  string
}

// readReport reads what ran from ginkgo's JSON report, by the specs' full names.
func readReport(path string) (map[string]spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			NumAttempts             int
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	specs := map[string]spec{}
	for _, s := range suites {
		for _, r := range s.SpecReports {
			switch {
			case r.LeafNodeType != "It" && r.State == "failed":
				return nil, fmt.Errorf("%s: %s: %s", path, r.LeafNodeType, r.Failure.Message)
			case r.LeafNodeType != "It" || r.State == "pending" || r.State == skipped && r.RunTime == 0: // not of the focus
				continue
			}
			name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
			specs[strings.TrimPrefix(name, "[sig-network] ")] = spec{r.State, r.NumAttempts, r.RunTime, r.Failure.Message}
		}
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("%s: no spec ran", path)
	}
	return specs, nil
}

// counts says how many specs ended how.
func (r run) counts() string {
	n := map[string]int{}
	for _, s := range r.specs {
		n[s.state]++
	}
	return fmt.Sprintf("%d passed, %d failed, %d skipped themselves", n[passed], len(r.specs)-n[passed]-n[skipped], n[skipped])
}
