package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// Objects converts objects of sluice.dev to plugins and policies. It keeps what it has converted: a change costs what has
// changed, and a valid version of an object stays in force while a newer one is invalid.
type Objects struct {
	policies map[model.ObjectName]*converted
}

type converted struct {
	from   any // the object that was converted last
	object *policy.Object
	err    error // of from; object is then that of an earlier version, or nil
}

// ObjectSet is the part of a Config that objects give.
type ObjectSet struct {
	policies []*policy.Object // those that may be in force
	fileEnd  int              // Config.Plugins from here on are objects
	observed v1alpha1.Observed
}

// ObjectProblem is why an object, or a version of it, is not in force.
type ObjectProblem struct {
	Object model.ObjectName
	Err    error // begins with the path of a field
	Kept   bool  // an earlier version is in force
	// NotAllowed: the object is valid, but its plugins, or its settings of them, are not there for it.
	NotAllowed bool
}

// Error implements error.
func (p *ObjectProblem) Error() string {
	text := fmt.Sprintf("%s: %v", objectTitle(p.Object), p.Err)
	if p.Kept {
		text += "; the version before stays in force"
	}
	return text
}

func (p *ObjectProblem) Unwrap() error { return p.Err }

func objectTitle(n model.ObjectName) string {
	if n.Name.Namespace == "" {
		return n.Kind + " " + n.Name.Name
	}
	return n.Kind + " " + n.Name.String()
}

// WithObjects returns a configuration with the plugins and policies of objects, and what is wrong with them, sorted. What the
// file defines has precedence over a plugin of the same name.
func (o *Objects) WithObjects(c *Config, all map[model.ObjectName]any) (*Config, []*ObjectProblem) {
	c = c.FileOnly()
	out := *c
	set := &ObjectSet{fileEnd: len(c.Plugins)}
	out.Objects, out.Plugins = set, slices.Clone(c.Plugins)
	set.observed = observed(all)
	if o.policies == nil {
		o.policies = map[model.ObjectName]*converted{}
	}
	maps.DeleteFunc(o.policies, func(n model.ObjectName, _ *converted) bool { return all[n] == nil })
	var problems []*ObjectProblem
	use := map[string]*v1alpha1.ServicePlugin{} // nil: of the file
	for i := range c.Plugins {
		use[c.Plugins[i].Name] = nil
	}
	names := slices.SortedFunc(maps.Keys(all), func(a, b model.ObjectName) int {
		return strings.Compare(objectTitle(a), objectTitle(b))
	})
	for _, n := range names {
		p, ok := all[n].(*v1alpha1.ServicePlugin)
		if !ok {
			continue
		}
		if _, twice := use[n.Name.Name]; twice {
			problems = append(problems, &ObjectProblem{Object: n, Err: errors.New("metadata.name: the configuration file has a plugin of this name, which is used instead")})
			continue
		}
		plugin, err := newPlugin(p)
		if err != nil {
			problems = append(problems, &ObjectProblem{Object: n, Err: err})
			continue
		}
		use[n.Name.Name] = p
		out.Plugins = append(out.Plugins, plugin)
	}
	for _, n := range names {
		if _, plugin := all[n].(*v1alpha1.ServicePlugin); plugin {
			continue
		}
		v := o.policies[n]
		if v == nil || v.from != all[n] {
			v = v.next(c, n, all[n])
			o.policies[n] = v
		}
		if v.err != nil {
			problems = append(problems, &ObjectProblem{Object: n, Err: v.err, Kept: v.object != nil})
		}
		if v.object == nil {
			continue
		}
		if err := mayUse(v.object, use); err != nil {
			problems = append(problems, &ObjectProblem{Object: n, Err: err, NotAllowed: true})
			continue
		}
		set.policies = append(set.policies, v.object)
	}
	return &out, problems
}

// observed returns the highest resource version of each kind. Versions are decimal numbers (KEP-5504); a folder has none.
func observed(all map[model.ObjectName]any) (out v1alpha1.Observed) {
	later := func(has *string, version string) {
		if len(version) > len(*has) || len(version) == len(*has) && version > *has {
			*has = version
		}
	}
	for _, o := range all {
		switch o := o.(type) {
		case *v1alpha1.ServicePlugin:
			later(&out.ServicePlugins, o.ResourceVersion)
		case *v1alpha1.ServicePolicy:
			later(&out.ServicePolicies, o.ResourceVersion)
		case *v1alpha1.ClusterServicePolicy:
			later(&out.ClusterServicePolicies, o.ResourceVersion)
		}
	}
	return out
}

// ObjectsInForce returns how many policies of objects the configuration has, the names of the plugins that are objects, and up to
// which resource versions objects have been read.
func (c *Config) ObjectsInForce() (policies int, plugins []string, observed v1alpha1.Observed) {
	if c.Objects == nil {
		return 0, nil, observed
	}
	for i := range c.Plugins[c.Objects.fileEnd:] {
		plugins = append(plugins, c.Plugins[c.Objects.fileEnd+i].Name)
	}
	return len(c.Objects.policies), plugins, c.Objects.observed
}

// FileOnly returns the configuration without objects.
func (c *Config) FileOnly() *Config {
	if c.Objects == nil {
		return c
	}
	out := *c
	out.Objects, out.Plugins = nil, c.Plugins[:c.Objects.fileEnd:c.Objects.fileEnd]
	return &out
}

// next converts another version of an object.
func (v *converted) next(c *Config, n model.ObjectName, object any) *converted {
	out := &converted{from: object}
	var problem error
	out.object, problem = newObject(c, n, object)
	if out.err = problem; problem != nil && v != nil {
		out.object = v.object
	}
	return out
}

// ChangedPolicies returns the policies of objects in one of two configurations that the other one does not have, and whether that
// is all that differs.
func ChangedPolicies(before, after *Config) (changed []*policy.Object, only bool) {
	had := map[*policy.Object]bool{}
	for _, o := range before.objectPolicies() {
		had[o] = true
	}
	for _, o := range after.objectPolicies() {
		if had[o] {
			delete(had, o)
		} else {
			changed = append(changed, o)
		}
	}
	changed = append(changed, slices.Collect(maps.Keys(had))...)
	same := *before
	same.Objects = after.Objects
	return changed, same.Equal(after)
}

func (c *Config) objectPolicies() []*policy.Object {
	if c.Objects == nil {
		return nil
	}
	return c.Objects.policies
}

// BundledDir is the folder of the bundled plugins: beside the program, as in the image.
var BundledDir = func() string {
	exe, err := os.Executable()
	if err != nil {
		return "/plugins"
	}
	return filepath.Join(filepath.Dir(exe), "plugins")
}()

// newPlugin converts a ServicePlugin. What an API server has validated is checked again as far as it matters: a folder has no
// schemas.
func newPlugin(o *v1alpha1.ServicePlugin) (Plugin, error) {
	s := &o.Spec
	p := Plugin{Name: o.Name, Isolation: IsolateNone, RepeatOneIn: 64, Limits: Limits{MemoryMiB: 64, Instances: 16}}
	if s.Limits.MemoryMiB != 0 {
		p.Limits.MemoryMiB = int(s.Limits.MemoryMiB)
	}
	if s.Limits.Instances != 0 {
		p.Limits.Instances = int(s.Limits.Instances)
	}
	if s.Isolation != "" {
		p.Isolation = s.Isolation
	}
	if s.Verify != nil {
		p.Verify.Key = s.Verify.Key
	}
	var err error
	switch {
	case s.Source.Type == v1alpha1.ImageSource && s.Source.Image != nil:
		if err = p.Image.UnmarshalText([]byte(s.Source.Image.Ref)); err != nil {
			err = fmt.Errorf("spec.source.image.ref: %w", err)
		}
	case s.Source.Type == v1alpha1.FileSource && s.Source.File != nil:
		p.File, p.Digest = s.Source.File.Path, s.Source.File.Digest
		if !filepath.IsAbs(p.File) {
			err = fmt.Errorf("spec.source.file.path: %.300q is not an absolute path", p.File)
		}
	case s.Source.Type == v1alpha1.BundledSource && s.Source.Bundled != nil:
		name := s.Source.Bundled.Name
		if p.File = filepath.Join(BundledDir, name+".wasm"); checkName(name) != nil || filepath.Base(p.File) != name+".wasm" {
			err = fmt.Errorf("spec.source.bundled.name: %.100q is not a name", name)
		}
	default:
		err = fmt.Errorf("spec.source: type %.20q without its field; types: Image, File, Bundled", s.Source.Type)
	}
	switch {
	case err != nil:
	case len(p.Name) > 63 || checkName(p.Name) != nil:
		err = fmt.Errorf("metadata.name: %.100q is not a name of at most 63 characters", p.Name)
	case p.Isolation != IsolateNone && p.Isolation != IsolateNamespace:
		err = fmt.Errorf("spec.isolation: %w", oneOf(p.Isolation, []string{IsolateNone, IsolateNamespace}))
	case p.Limits.MemoryMiB < 1 || p.Limits.MemoryMiB > 64:
		err = fmt.Errorf("spec.limits.memoryMiB: %d is not from 1 to 64", p.Limits.MemoryMiB)
	case p.Limits.Instances < 2 || p.Limits.Instances > 256:
		err = fmt.Errorf("spec.limits.instances: %d is not from 2 to 256", p.Limits.Instances)
	case p.Verify.Key != "" && !strings.HasPrefix(p.Verify.Key, "-----BEGIN PUBLIC KEY-----"):
		err = errors.New("spec.verify.key: not a public key in PEM")
	case p.Verify.Key != "" && p.Image == (imageref.Ref{}):
		err = errors.New("spec.verify: only images have signatures")
	}
	return p, err
}

// newObject converts a ServicePolicy or ClusterServicePolicy.
func newObject(c *Config, n model.ObjectName, object any) (*policy.Object, error) {
	out := &policy.Object{Name: n.Name}
	var chain *v1alpha1.Chain
	switch o := object.(type) {
	case *v1alpha1.ServicePolicy:
		chain, out.Created = &o.Spec.Chain, o.CreationTimestamp.Unix()
		if k := len(o.Spec.TargetRefs); k == 0 || k > 16 {
			return nil, fmt.Errorf("spec.targetRefs: %d targets; 1 to 16 are allowed", k)
		}
		for i, t := range o.Spec.TargetRefs {
			if t.Group != "" || t.Kind != "Service" && t.Kind != "" || t.Name == "" {
				return nil, fmt.Errorf("spec.targetRefs[%d]: not a Service: kind %.60q, name %.60q", i, t.Kind, t.Name)
			}
			out.Targets = append(out.Targets, policy.Target{Service: t.Name, Port: t.SectionName})
		}
	case *v1alpha1.ClusterServicePolicy:
		chain, out.Created = &o.Spec.Chain, o.CreationTimestamp.Unix()
		out.Namespaces, out.Overrides = o.Spec.Namespaces, o.Spec.Overrides
		if s := o.Spec.ServiceSelector; s != nil {
			var err error
			if out.Selector, err = newSelector(s); err != nil {
				return nil, fmt.Errorf("spec.serviceSelector.%w", err)
			}
		}
	default:
		return nil, fmt.Errorf("kind: %T is not a policy", object)
	}
	q, err := newChain(c, chain, n.Name.Namespace != "")
	if err != nil {
		return nil, fmt.Errorf("spec.%w", err)
	}
	q.Name, q.FromObject = policy.ObjectPolicyName(n.Name), true
	out.Policy = q
	switch chain.Mode {
	case "", v1alpha1.Enforce:
	case v1alpha1.Shadow:
		if out.Shadow = true; chain.Guard != nil {
			return nil, errors.New("spec.guard: a guard is for mode Enforce")
		}
	default:
		return nil, fmt.Errorf("spec.mode: %w", oneOf(string(chain.Mode), []string{"Enforce", "Shadow"}))
	}
	if r := chain.Rollout; r != nil {
		switch {
		case (r.Percent == nil) == (r.NodeSelector == nil):
			err = errors.New("one of percent and nodeSelector is required")
		case r.Percent != nil && !(*r.Percent >= 0.1 && *r.Percent <= 100):
			err = fmt.Errorf("percent: %v is not from 0.1 to 100", *r.Percent)
		case r.Percent != nil:
			out.Nodes.Permille = int(math.Round(*r.Percent * 10))
		default:
			out.Nodes.Selector, err = newSelector(r.NodeSelector)
		}
		if err != nil {
			return nil, fmt.Errorf("spec.rollout: %w", err)
		}
	}
	return out, nil
}

// newChain converts what a policy does. The settings of a namespace's owner are tried apart, as those of Services are.
func newChain(c *Config, chain *v1alpha1.Chain, own bool) (*policy.Policy, error) {
	q := &policy.Policy{IgnoreHints: chain.IgnoreHints, MaxShedPercentPerSecond: max(1, int(chain.MaxShedPercentPerSecond))}
	if q.LongLived = chain.TrafficHint != ""; q.LongLived {
		if err := checkTrafficHint(chain.TrafficHint); err != nil {
			return nil, fmt.Errorf("trafficHint: %w", err)
		}
	}
	switch k := len(chain.Plugins); {
	case k > 8, k == 0 && !q.LongLived:
		return nil, fmt.Errorf("plugins: %d plugins; 1 to 8 are allowed", k)
	case k == 0 && (chain.Mode == v1alpha1.Shadow || chain.Guard != nil || chain.IgnoreHints):
		return nil, errors.New("plugins: required with mode Shadow, guard and ignoreHints")
	}
	for i := range chain.Plugins {
		s := &chain.Plugins[i]
		step := policy.Step{Plugin: s.Name}
		if slices.ContainsFunc(q.Steps, func(t policy.Step) bool { return t.Plugin == s.Name }) {
			return nil, fmt.Errorf("plugins[%d].name: %.100q: duplicate", i, s.Name)
		}
		if s.Settings != nil && len(s.Settings.Raw) > 0 && string(s.Settings.Raw) != "null" {
			if n := len(s.Settings.Raw); n > v1alpha1.MaxSettings {
				return nil, fmt.Errorf("plugins[%d].settings: %d bytes, the limit is %d", i, n, v1alpha1.MaxSettings)
			}
			var err error
			if step.Settings, err = policy.CanonicalSettings(s.Settings.Raw); err != nil {
				return nil, fmt.Errorf("plugins[%d].settings: %w", i, err)
			}
			step.Own = own
		}
		q.Steps = append(q.Steps, step)
	}
	if err := q.OnFailure.UnmarshalText([]byte(chain.FailurePolicy)); err != nil {
		return nil, fmt.Errorf("failurePolicy: %w", err)
	}
	if q.MaxShedPercentPerSecond > 100 {
		return nil, fmt.Errorf("maxShedPercentPerSecond: %d is not from 1 to 100", q.MaxShedPercentPerSecond)
	}
	if g := chain.Guard; g != nil {
		window, err := duration(g.Window, 30*time.Second, 5*time.Second, 10*time.Minute)
		switch {
		case err != nil:
			return nil, fmt.Errorf("guard.window: %w", err)
		case g.FailedPercent < 1 || g.FailedPercent > 100:
			return nil, fmt.Errorf("guard.failedPercent: %d is not from 1 to 100", g.FailedPercent)
		case window < guardReadings*c.Signals.Period:
			return nil, fmt.Errorf("guard.window: %s is less than %d times signals.period of the nodes, %s", window, guardReadings, c.Signals.Period)
		}
		q.Guard = policy.Guard{FailedPercent: int(g.FailedPercent), Window: window}
	}
	if p := chain.Panic; p != nil {
		hold, err := duration(p.Hold, 5*time.Minute, time.Second, time.Hour)
		switch {
		case err != nil:
			return nil, fmt.Errorf("panic.hold: %w", err)
		case p.Below < 1 || p.Below > 100:
			return nil, fmt.Errorf("panic.below: %d is not from 1 to 100", p.Below)
		}
		q.Panic = policy.Panic{Below: int(p.Below), Hold: hold.Truncate(time.Second)}
	}
	return q, nil
}

func duration(text string, missing, least, most time.Duration) (time.Duration, error) {
	if text == "" {
		return missing, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && (d < least || d > most) {
		err = fmt.Errorf("%s is not from %s to %s", d, least, most)
	}
	return d, err
}

func newSelector(s *v1alpha1.LabelSelector) (policy.Selector, error) {
	of := Selector{MatchLabels: s.MatchLabels}
	for _, r := range s.MatchExpressions {
		of.MatchExpressions = append(of.MatchExpressions, Requirement(r))
	}
	p := parser{misfits: &strictyaml.FieldErrors{}}
	if p.selector("", &of); len(p.errs) > 0 {
		return nil, errors.New(strings.TrimPrefix(p.errs[0].Error(), "."))
	}
	for i, r := range of.MatchExpressions {
		if err := oneOf(r.Operator, []string{"In", "NotIn", "Exists", "DoesNotExist"}); err != nil {
			return nil, fmt.Errorf("matchExpressions[%d].operator: %w", i, err)
		}
	}
	if of.empty() {
		return nil, errors.New("matchLabels: required, or matchExpressions")
	}
	return of.build(), nil
}

// mayUse returns an error unless the plugins of a policy exist, and the namespace of a ServicePolicy may use them with its
// settings. It names no plugin that the namespace may not use.
func mayUse(o *policy.Object, use map[string]*v1alpha1.ServicePlugin) error {
	namespace := o.Name.Namespace
	allowed := func(name string) bool {
		p, known := use[name]
		if !known || namespace == "" {
			return known
		}
		return p != nil && p.Spec.Use != nil && (len(p.Spec.Use.Namespaces) == 0 || slices.Contains(p.Spec.Use.Namespaces, namespace))
	}
	for i := range o.Policy.Steps {
		s := &o.Policy.Steps[i]
		if !allowed(s.Plugin) {
			var usable []string
			for name := range use {
				if allowed(name) {
					usable = append(usable, name)
				}
			}
			slices.Sort(usable)
			if namespace == "" {
				return fmt.Errorf("spec.plugins[%d].name: no plugin %.100q%s", i, s.Plugin, spelling.DidYouMean(s.Plugin, usable))
			}
			return fmt.Errorf("spec.plugins[%d].name: there is no plugin %.100q that namespace %s may use%s", i, s.Plugin, namespace, spelling.DidYouMean(s.Plugin, usable))
		}
		if namespace == "" || s.Settings == "" {
			continue
		}
		fields, err := policy.SettingsFields(s.Settings)
		if err != nil {
			return fmt.Errorf("spec.plugins[%d].settings: %w", i, err)
		}
		grant := use[s.Plugin].Spec.Use.Settings
		for _, field := range fields {
			if !slices.Contains(grant, field) {
				return fmt.Errorf("spec.plugins[%d].settings.%.100s: ServicePlugin %s does not let ServicePolicies set it%s", i, field, s.Plugin, spelling.DidYouMean(field, grant))
			}
		}
	}
	return nil
}

// objectSettings returns the settings that objects have for a plugin, which is checked with them, and whether one uses it. Those
// of ServicePolicies are not among them: the plugin is checked without settings, and these are tried when they are used, so that
// no tenant keeps others from a new revision of a plugin.
func (c *Config) objectSettings(plugin string) (out []PluginSettings) {
	name, shadow := policy.CutShadow(plugin)
	for _, o := range c.objectPolicies() {
		for i, s := range o.Policy.Steps {
			if s.Plugin != name || o.Shadow != shadow {
				continue
			}
			text := s.Settings
			if s.Own {
				text = ""
			}
			if !slices.ContainsFunc(out, func(p PluginSettings) bool { return p.Text == text }) {
				out = append(out, PluginSettings{text, fmt.Sprintf("%s: spec.plugins[%d].settings", o.Policy.Name, i)})
			}
		}
	}
	return out
}
