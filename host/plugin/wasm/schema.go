package wasm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// SchemaError is why settings are not as the manifest of the module says.
type SchemaError struct{ Problems []manifest.Problem }

// Error implements error.
func (e *SchemaError) Error() string {
	var out []string
	for _, p := range e.Problems {
		out = append(out, p.Error())
	}
	return "settings refused: " + strings.Join(out, "; ")
}

// checkSchema returns a *SchemaError if settings are not as the manifest says.
func (p *Plugin) checkSchema(settings string) error {
	problems := p.report.Manifest.CheckSettings([]byte(settings))
	if len(problems) == 0 {
		return nil
	}
	for i := range problems {
		problems[i].Message += spelling.DidYouMean(problems[i].Unknown, problems[i].Known)
	}
	return &SchemaError{problems}
}

// Manifest returns what the module says of itself.
func (p *Plugin) Manifest() manifest.Manifest { return p.report.Manifest }

// checkListed returns an error if a plugin asks for inputs that its manifest does not list.
func (p *Plugin) checkListed(in asked) error {
	var errs []error
	for _, input := range Inputs() {
		if text := input.Asked(in.needs, in.keys); text != "" && !slices.Contains(p.report.Manifest.Needs, input.Name) {
			errs = append(errs, fmt.Errorf("module refused: it asks for %s, and its manifest does not list %q in needs", text, input.Name))
		}
	}
	return errors.Join(errs...)
}
