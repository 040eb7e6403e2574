/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* What both stand-ins for GPU drivers do: hold functions of one vendor, ask whether they answer, register with DRM. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_gem.h>
#include <drm/drm_ioctl.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
#define STAND_IN_DATE .date = "20260101",
#else
#define STAND_IN_DATE
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
#define stand_in_class(name) class_create(THIS_MODULE, name)
#else
#define stand_in_class(name) class_create(name)
#endif

/* Any display function of a vendor, as the tables of the real drivers for 0x0300 and 0x0302. */
#define STAND_IN_DISPLAY(vendor_id)                                                                                    \
	{                                                                                                              \
		PCI_DEVICE(vendor_id, PCI_ANY_ID), .class = PCI_BASE_CLASS_DISPLAY << 16, .class_mask = 0xff0000       \
	}

/* The first register of the first BAR; all ones when nothing answers. */
static inline u32 stand_in_register(struct pci_dev *pci)
{
	void __iomem *bar = pci_iomap(pci, 0, 4096);
	u32 value = ~0u;

	if (bar) {
		value = ioread32(bar);
		pci_iounmap(pci, bar);
	}
	return value;
}

/* Enable a function and register a card and a render node for it. */
static inline struct drm_device *stand_in_register_card(struct pci_dev *pci, const struct drm_driver *driver)
{
	struct drm_device *drm;
	int result = pci_enable_device(pci);

	if (result)
		return ERR_PTR(result);
	if (stand_in_register(pci) == ~0u) {
		pci_disable_device(pci);
		return ERR_PTR(-EIO);
	}
	drm = drm_dev_alloc(driver, &pci->dev);
	if (!IS_ERR(drm)) {
		result = drm_dev_register(drm, 0);
		if (!result)
			return drm;
		drm_dev_put(drm);
		drm = ERR_PTR(result);
	}
	pci_disable_device(pci);
	return drm;
}

static inline void stand_in_remove_card(struct pci_dev *pci, struct drm_device *drm)
{
	drm_dev_unplug(drm);
	drm_dev_put(drm);
	pci_disable_device(pci);
}

#endif
