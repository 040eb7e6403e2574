// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/* A stand-in for amdgpu.ko: binds display functions of AMD, registers cards, and has KFD beside it. */
#include "amdgpu.h"
#include "stand_in.h"

DEFINE_DRM_GEM_FOPS(drm_operations);
static const struct drm_driver drm_driver_description = {
	.driver_features = DRIVER_GEM | DRIVER_RENDER,
	.fops = &drm_operations,
	.name = "amdgpu",
	.desc = "a stand-in for tests",
	.major = 3,
	STAND_IN_DATE
};

static int probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct drm_device *drm = stand_in_register_card(pci, &drm_driver_description);

	if (IS_ERR(drm)) {
		dev_err(&pci->dev, "amdgpu: Fatal error during GPU init\n");
		return PTR_ERR(drm);
	}
	pci_set_drvdata(pci, drm);
	kfd_add(pci, drm->render->index);
	return 0;
}

static void remove(struct pci_dev *pci)
{
	kfd_drop(pci);
	stand_in_remove_card(pci, pci_get_drvdata(pci));
}

static const struct pci_device_id ids[] = {STAND_IN_DISPLAY(PCI_VENDOR_ID_ATI), {}};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver pci_driver_description = {
	.name = "amdgpu",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
};

static int __init load(void)
{
	int result = kfd_load();

	if (result)
		return result;
	result = pci_register_driver(&pci_driver_description);
	if (result)
		kfd_unload();
	return result;
}

static void __exit unload(void)
{
	pci_unregister_driver(&pci_driver_description);
	kfd_unload();
}

module_init(load);
module_exit(unload);
MODULE_DESCRIPTION("A stand-in for tests");
MODULE_LICENSE("GPL and additional rights");
