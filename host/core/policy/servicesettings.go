package policy

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// ServiceSettings is what a Service's own settings are and do.
type ServiceSettings struct {
	Text    string  // annotation sluice.dev/settings
	InForce *Policy // the policy with the settings in force: those of Text, the last good ones, or its own
	Err     error   // why Text is not in force; nil: it is
}

// ownSettings is the state of the settings of a Service that has some.
//
// A text is first tried: the chain runs with it. It becomes the good one when the chain has answered. If it cannot be applied to
// the policy, or a plugin refuses it, the good one stays in force, and the policy's own settings if there is none. All of a text
// is in force, or nothing.
type ownSettings struct {
	policy  *Policy // which text is for
	text    string  // of the annotation
	inForce *Policy
	err     error // of text
	good    string
	// refuser and revision are the plugin that has refused the text in force, and its revision: another one is tried again.
	refuser, revision string
}

// serviceSettings are the settings that Services have themselves.
type serviceSettings struct {
	loader   *loader
	settings map[model.Name]*ownSettings // of the Services that have some
}

// Settings returns the settings of a Service with a policy, which is not nil.
func (o *serviceSettings) Settings(svc *model.Service, p *Policy) ServiceSettings {
	if p.FromObject {
		return ServiceSettings{InForce: p}
	}
	if svc.Settings == "" {
		if len(o.settings) > 0 {
			delete(o.settings, svc.Name)
		}
		return ServiceSettings{InForce: p}
	}
	s := o.settings[svc.Name]
	if s == nil {
		s = &ownSettings{}
		o.settings[svc.Name] = s
	}
	if s.text != svc.Settings || s.policy == nil || s.policy != p && !s.policy.equal(p) || o.reloaded(s) {
		s.try(svc, p)
	}
	return ServiceSettings{s.text, s.inForce, s.err}
}

// try puts the text of the annotation in force if the policy allows it.
func (s *ownSettings) try(svc *model.Service, p *Policy) {
	s.policy, s.text, s.err, s.refuser, s.revision = p, svc.Settings, nil, "", ""
	q, err := p.withServiceSettings(s.text)
	if err != nil {
		s.refuse(svc.Name, err)
		return
	}
	s.inForce = q
}

// refuse puts the last good settings in force, or the policy's own.
func (s *ownSettings) refuse(name model.Name, err error) {
	if s.err == nil {
		s.err = fmt.Errorf("Service %s: metadata.annotations[sluice.dev/settings]: %w", name, err)
	} else {
		s.good = "" // it is the good text that is refused, by a new revision of a plugin or with other settings of the policy
	}
	if s.good == s.text {
		s.good = ""
	}
	s.inForce = s.policy
	if s.good == "" {
		return
	}
	q, err := s.policy.withServiceSettings(s.good)
	if err != nil {
		s.good = ""
		return
	}
	s.inForce = q
}

// reloaded reports whether the plugin that has refused a text has another revision now.
func (o *serviceSettings) reloaded(s *ownSettings) bool {
	if s.refuser == "" {
		return false
	}
	plugin, err := o.loader.plugins(s.refuser)
	return err == nil && plugin.Revision() != s.revision
}

// settingsRefused records that a plugin refuses the settings of a step.
func (o *serviceSettings) settingsRefused(name model.Name, p *Policy, step *Step, plugin Plugin, err error) {
	s := o.settings[name]
	if s == nil || !step.Own || s.inForce != p {
		return
	}
	s.refuser, s.revision = step.Plugin, plugin.Revision()
	s.refuse(name, fmt.Errorf("plugin %s: %w", step.Plugin, err))
}

// settingsAnswered records that the chain of a policy has answered.
func (o *serviceSettings) settingsAnswered(name model.Name, p *Policy) {
	if s := o.settings[name]; s != nil && s.inForce == p && s.err == nil {
		s.good = s.text
	}
}

// DeleteSettings deletes the state of a Service's settings.
func (o *serviceSettings) DeleteSettings(name model.Name) { delete(o.settings, name) }
