package migrate

import "github.com/sluice-proxy/sluice/host/node/config"

// ipvs converts the section ipvs if that is kube-proxy's mode.
func (m *migration) ipvs() {
	if m.backend != config.ModeIPVS {
		return
	}
	m.put("mode", config.ModeIPVS)
	for _, name := range []string{"scheduler", "strictARP", "excludeCIDRs", "tcpTimeout", "tcpFinTimeout", "udpTimeout"} {
		path := "ipvs." + name
		v := m.take(path)
		text, isText := v.(string)
		if weighted := map[string]string{"rr": "wrr", "lc": "wlc"}[text]; name == "scheduler" && weighted != "" {
			m.note(Changed, path, "%s: replaced with %s, which is the same with equal weights and honors the weights of policies", v, weighted)
			v = weighted
		}
		switch {
		case v == nil:
		case isText && (text == "" || text == "0s"):
			m.omittedDefaults = append(m.omittedDefaults, path)
		default:
			m.put(path, v)
		}
	}
}
