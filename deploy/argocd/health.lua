-- Health of ServicePlugins, ServicePolicies and ClusterServicePolicies, for Argo CD.
local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "waiting for sluice controller"}
end
local conditions = {}
for _, c in ipairs(status.conditions) do
  conditions[c.type] = c
end
if conditions.Stalled ~= nil and conditions.Stalled.status == "True" then
  return {status = "Degraded", message = conditions.Stalled.reason .. ": " .. conditions.Stalled.message}
end
if conditions.Resolved ~= nil and conditions.Resolved.status == "False" then
  return {status = "Degraded", message = conditions.Resolved.reason .. ": " .. conditions.Resolved.message}
end
if conditions.Reconciling ~= nil and conditions.Reconciling.status == "True" then
  return {status = "Progressing", message = conditions.Reconciling.message}
end
local programmed = conditions.Programmed
if programmed == nil then
  return {status = "Progressing", message = "waiting for sluice controller"}
end
return {status = "Healthy", message = programmed.message}
